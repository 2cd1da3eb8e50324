"""E2B: boxes in its cloud, or on any server that speaks its protocol, through the official SDK."""
