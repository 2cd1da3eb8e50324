"""Archives: an exported box, with its checkpoints, and a backup of the state directory; written, checked and read."""
