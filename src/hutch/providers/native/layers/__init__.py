"""Layers of a native box's files: checkpoints, rollbacks, forks, comparisons and merges by switching overlays."""
