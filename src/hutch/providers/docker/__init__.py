"""Docker and Podman: boxes as containers of an engine that speaks Docker's HTTP API, with a bundle guest inside."""
