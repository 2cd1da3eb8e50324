"""Images: layers from registries and archives, kept once and shared, ready to be the root of a box."""
