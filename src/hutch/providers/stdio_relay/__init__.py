"""Engines elsewhere that can start a process and carry its streams: our guest is planted there and reached by them."""
