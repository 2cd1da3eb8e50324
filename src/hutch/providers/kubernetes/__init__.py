"""Kubernetes: each box is a Pod; see docs/guides/kubernetes.md."""
