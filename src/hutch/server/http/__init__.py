"""HTTP/1.1 below the application: the protocol class for uvicorn, connections, peers, headers."""
