"""Whole systems: other people's clients and products against a real `hutch serve`."""
