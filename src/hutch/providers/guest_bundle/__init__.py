"""A guest planted into containers whose image knows nothing of us: a Python runtime of our own, and what it runs."""
