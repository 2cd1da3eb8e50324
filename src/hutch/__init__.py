"""Hutch: isolated boxes for AI agents that start in milliseconds."""

__version__ = "0.1.0"
