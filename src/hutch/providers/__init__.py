"""Engines: each makes, re-attaches and destroys boxes behind the contract in `base`."""
