"""Which keepers live, and what happens to the boxes of one that died."""
