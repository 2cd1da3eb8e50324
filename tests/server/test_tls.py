"""Connections to a server with TLS that never shake hands are strangers': counted, cut to make room, and timed out."""

import json
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.server.serving import Server, certificate
from tests.server.test_held_bytes import Cramped


@pytest.fixture
def certified(tmp_path: Path) -> tuple[Path, Path]:
    return certificate(tmp_path)


def started(server: Server, certified: tuple[Path, Path]) -> Server:
    server.start("--tls-cert", str(certified[0]), "--tls-key", str(certified[1]))
    return server


@pytest.fixture
def cramped(certified: tuple[Path, Path]) -> Iterator[Server]:
    """400 descriptors, of which strangers have 75 and one address 37."""
    server = Cramped()
    try:
        yield started(server, certified)
    finally:
        server.close()


def address(server: Server) -> tuple[str, int]:
    host, _, port = server.announcement["url"].removeprefix("https://").partition(":")
    return host, int(port)


def asked(server: Server, certified: tuple[Path, Path], path: str, key: str) -> Any:
    """Over TLS, on a connection of its own."""
    request = urllib.request.Request(f"{server.announcement['url']}{path}", headers={"Hutch-Key": key})
    context = ssl.create_default_context(cafile=str(certified[0]))
    with urllib.request.urlopen(request, context=context, timeout=60) as response:
        return json.load(response)


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def descriptors(server: Server) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01\x02\x00"], ids=["silent", "in the middle of a handshake"])
def test_connections_that_never_shake_hands_are_strangers(
    cramped: Server, certified: tuple[Path, Path], first: bytes
) -> None:
    """Class: descriptors that a stranger can use up. More connections than the server has descriptors."""
    key = cramped.key("user", "good")
    before = descriptors(cramped)
    with ExitStack() as opened:
        connections = []
        for _ in range(500):
            connections.append(opened.enter_context(socket.create_connection(address(cramped), timeout=60)))
            connections[-1].sendall(first)
        assert asked(cramped, certified, "/v1/status", key)["state"] == "ready"
        assert descriptors(cramped) < before + 60, "an address has 37 places"
        connections[0].settimeout(60)
        assert ended(connections[0]), "the oldest made room"
        connections[-1].settimeout(0.2)
        assert not ended(connections[-1]), "the newest has its place"
        with cramped.unix().box(memory_mb=64, disk_mb=8) as box:
            assert cramped.unix().good("POST", f"{box}/exec", {"command": ["true"]})["exit_code"] == 0


def test_a_handshake_has_the_time_of_a_head(certified: tuple[Path, Path]) -> None:
    """`body_timeout_sec` bounds both; a client that shakes hands in time is served, and its early bytes are not
    lost."""
    server = started(Server(HUTCH_SERVER_BODY_TIMEOUT_SEC="1"), certified)
    try:
        with socket.create_connection(address(server), timeout=30) as silent:
            assert ended(silent)
        context = ssl.create_default_context(cafile=str(certified[0]))
        # The request goes out together with the last flight of the handshake, through one buffer.
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with socket.create_connection(address(server), timeout=60) as raw:
            while True:
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    raw.sendall(outgoing.read())
                    incoming.write(raw.recv(1 << 16))
            client.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            raw.sendall(outgoing.read())
            answer = b""
            while b"\r\n\r\n" not in answer:
                incoming.write(raw.recv(1 << 16))
                try:
                    answer += client.read()
                except ssl.SSLWantReadError:
                    continue
            assert answer.startswith(b"HTTP/1.1 200 ")
    finally:
        server.close()
