"""Where a client takes its key when a server says that another one keeps a box."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hutch import Hutch
from hutch.errors import HeldElsewhere
from tests.server.serving import certificate

BOX = "b" * 20


class Server:
    """Says of every box that the server at `url` keeps it."""

    def __init__(self) -> None:
        self.url = ""
        self.port = 0
        self.asked: list[bytes] = []
        """The head of each request."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.asked.append(head)
                length = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
                await reader.readexactly(int(length[0].split(b":")[1]) if length else 0)
                details = {"box": BOX, "keeper": "k", "url": self.url}
                body = json.dumps({"code": "held_elsewhere", "message": "not here", "details": details}).encode()
                answer = f"HTTP/1.1 307 Elsewhere\r\nLocation: {self.url}\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(answer.encode() + body)
        except asyncio.IncompleteReadError:
            writer.close()


@asynccontextmanager
async def saying(url: str = "", tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server()
    server.url = url
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()


async def test_a_key_that_came_by_tls_is_not_sent_in_plain_text(tmp_path: Path) -> None:
    """A server reached by https that names one by http, by mistake or in an enemy's name, gets no key carried there."""
    made, secret = certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(made, secret)
    async with saying() as plain, saying(f"http://127.0.0.1:{plain.port}", tls) as secure:
        async with Hutch(f"https://127.0.0.1:{secure.port}", key="hutch_secret", ca=str(made)) as hutch:
            for way in (hutch.attach, hutch.observe, hutch.destroy):
                with pytest.raises(HeldElsewhere, match="not here") as caught:
                    await way(BOX)
                assert "https" in caught.value.remedy
        assert any(b"hutch_secret" in head for head in secure.asked)
        assert plain.asked == []


async def test_servers_that_name_each_other_are_not_followed_for_ever() -> None:
    """Two servers of which each says that the other keeps the box: a few requests, then their error."""
    async with saying() as one, saying(f"http://127.0.0.1:{one.port}") as two, asyncio.timeout(60):
        one.url = f"http://127.0.0.1:{two.port}"
        async with Hutch(one.url, key="hutch_secret") as hutch:
            with pytest.raises(HeldElsewhere):
                await hutch.attach(BOX)
        assert 2 <= sum(b"/lease" in head for head in one.asked + two.asked) <= 8
