"""Boxes in micro virtual machines of BoxLite, on this machine or on a server of its own, through its package."""
