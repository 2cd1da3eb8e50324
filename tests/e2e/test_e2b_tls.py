"""Sandboxes by their own host names over TLS, as E2B's clients reach them without any address set (S13)."""

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hutch.server.e2b.credentials import to_e2b_key
from tests.server.serving import Server

DOMAIN = "hutch.test"


class TlsServer:
    """A server under a wildcard name, and requests to any name below it."""

    def __init__(self, server: Server, port: int) -> None:
        self.port = port
        self.key = to_e2b_key((server.state / "first-key").read_text().strip())
        self._context = ssl.create_default_context(cafile=str(server.state / "tls" / "authority.pem"))

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


@pytest.fixture(scope="module")
def tls() -> Iterator[TlsServer]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = Server()
    try:
        server.start("--port", str(port), "--tls-wildcard", DOMAIN)
        yield TlsServer(server, port)
    finally:
        server.close()


def test_names_below_the_domain_lead_to_the_sandbox(tls: TlsServer) -> None:
    """(S13) `api.DOMAIN` is the control plane, `49983-ID.DOMAIN` the agent, `PORT-ID.DOMAIN` a program in the box."""
    status, body = tls.call(f"api.{DOMAIN}", "POST", "/v2/sandboxes", {"templateID": "base"}, X_API_KEY=tls.key)
    assert status == 201
    made = json.loads(body)
    assert made["domain"] == f"{DOMAIN}:{tls.port}"
    sandbox, token = made["sandboxID"], made["envdAccessToken"]
    agent = f"49983-{sandbox}.{DOMAIN}"
    assert tls.call(agent, "GET", "/health")[0] == 204
    asked = {"path": "/home/user"}
    headers = {"Content_Type": "application/json", "X_Access_Token": token}
    status, body = tls.call(agent, "POST", "/filesystem.Filesystem/Stat", asked, **headers)
    assert (status, json.loads(body)["entry"]["type"]) == (200, "FILE_TYPE_DIRECTORY")
    status, body = tls.call(f"8080-{sandbox}.{DOMAIN}", "GET", "/")
    assert (status, json.loads(body)["message"]) == (502, "The sandbox is running but port is not open")
    assert tls.call(f"api.{DOMAIN}", "DELETE", f"/sandboxes/{sandbox}", X_API_KEY=tls.key)[0] == 204
    assert tls.call(agent, "GET", "/health")[0] == 502


def test_the_authority_is_made_once_and_its_key_is_private(tls: TlsServer, tmp_path: Path) -> None:
    """(S13) A second start uses the same certificate; nobody else reads the keys."""
    from hutch.server.http.authority import wildcard_certificate

    first = wildcard_certificate(tmp_path, "box.example")
    before = first.chain.read_bytes()
    again = wildcard_certificate(tmp_path, "box.example")
    assert again.chain.read_bytes() == before
    other = wildcard_certificate(tmp_path, "other.example")
    assert other.authority.read_bytes() == first.authority.read_bytes()
    for path in (first.key, tmp_path / "tls" / "authority.key"):
        assert path.stat().st_mode & 0o077 == 0
