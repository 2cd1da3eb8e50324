"""A Hutch server under a wildcard name over TLS, as E2B's clients reach sandboxes without any address set."""

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hutch.server.e2b.credentials import to_e2b_key
from tests.server.serving import Server

DOMAIN = "hutch.test"


class TlsServer:
    """A server under a wildcard name, and requests to any name below it."""

    def __init__(self, server: Server, port: int) -> None:
        self.port = port
        self.key = to_e2b_key((server.state / "first-key").read_text().strip())
        self.authority = server.state / "tls" / "authority.pem"
        self._context = ssl.create_default_context(cafile=str(self.authority))

    def call(self, name: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        """Ask under a host name, which is verified; nothing has to resolve it."""
        connection = http.client.HTTPSConnection(name, self.port, timeout=60)
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        connection.sock = self._context.wrap_socket(plain, server_hostname=name)
        try:
            data = json.dumps(body).encode() if body is not None else None
            connection.request(method, path, data, {key.replace("_", "-"): value for key, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@contextmanager
def serving_tls() -> Iterator[TlsServer]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = Server()
    try:
        server.start("--port", str(port), "--tls-wildcard", DOMAIN)
        yield TlsServer(server, port)
    finally:
        server.close()
