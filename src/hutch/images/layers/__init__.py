"""Layers: read from a stranger's archive, unpacked, looked into, and made from changes."""
