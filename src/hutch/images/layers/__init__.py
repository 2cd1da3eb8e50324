"""Layers: read from untrusted archives, unpacked, viewed together, and created from changes."""
