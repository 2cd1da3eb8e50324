"""How a client reaches its server: connections, requests that survive an outage, and the heartbeat of a process."""
