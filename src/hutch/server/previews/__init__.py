"""Previews: the ports of boxes by HTTP and WebSocket, each at an origin of its own."""
