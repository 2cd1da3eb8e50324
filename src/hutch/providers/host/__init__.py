"""No isolation: commands run on the host itself. Used only where a caller asks for it by name."""
