"""The guest as a bundle, for containers whose image knows nothing of us: a Python runtime and our programs."""
