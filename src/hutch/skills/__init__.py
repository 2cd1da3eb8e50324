"""Skill packages: read, checked, kept by content, and laid out for boxes to show."""
