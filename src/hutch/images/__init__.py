"""Images: layers from registries and archives, stored once and shared, from which boxes get their root."""
