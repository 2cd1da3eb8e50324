"""Boxes made with nsjail: one jail for each box, with our guest inside."""
