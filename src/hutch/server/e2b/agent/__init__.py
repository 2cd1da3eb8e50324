"""What E2B's agent `envd` does in a sandbox: processes, files and watchers over the Connect protocol, and `/files`."""
