"""No wall at all: commands run on the machine itself. Only for who asks for it by name."""
