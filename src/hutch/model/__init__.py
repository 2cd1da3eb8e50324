"""The records that all layers exchange: frozen, validated, and convertible to and from JSON."""
