"""Skill packages: read, checked, stored by content, and laid out as views that boxes mount."""
