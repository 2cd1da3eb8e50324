"""Boxes in E2B's cloud, or on any server that speaks its protocol, through the official SDK."""
