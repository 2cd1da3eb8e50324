"""The HTTP API of a Docker-compatible engine: where it is, its calls, its streams, and what it says about itself."""
