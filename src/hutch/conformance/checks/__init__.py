"""The checks, one module for each theme. Commands use only what any image has: `sh` and the core utilities."""
