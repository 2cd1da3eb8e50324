"""BoxLite: boxes in its micro virtual machines, on this machine or on a server of its own, through its package."""
