"""The remote form: the protocols of `hutch.api` over HTTP, on a Unix socket, TCP or TLS. Standard library only."""
