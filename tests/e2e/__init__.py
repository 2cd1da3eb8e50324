"""The whole system, driven by other people's clients."""
