"""Which keepers live, and what becomes of the boxes of one that died."""
