"""The relay beside a box, at its own port: who may pass, and what strangers can do to it."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hutch.errors import Unavailable
from hutch.providers.guest_bundle.listener import SOCKET_NAME
from hutch.providers.kubernetes import lanes
from hutch.providers.kubernetes.certificates import RelayKeys, new_keys
from hutch.providers.kubernetes.relay import Relay

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Serving:
    """A relay on a free port, and a guest that sends back what it is sent."""

    def __init__(self, port: int, keys: RelayKeys) -> None:
        self.port = port
        self.keys = keys
        self.greeted = 0
        """Callers that have reached the guest."""

    async def guest(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.greeted += 1
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async def connect(self) -> Streams:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cadata=self.keys.certificate)
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context)

    async def say(self, streams: Streams, token: str, words: bytes) -> bytes:
        """Send a token and some words, and return what comes back until the other end closes or has answered."""
        reader, writer = streams
        writer.write(token.encode() + b"\n" + words)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            return await reader.readexactly(len(words))
        return b""


@asynccontextmanager
async def relay(directory: Path) -> AsyncIterator[Serving]:
    keys = new_keys("box")
    for name, content in (("tls.crt", keys.certificate), ("tls.key", keys.key), ("token", keys.token)):
        (directory / name).write_text(content)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serving = Serving(port, keys)
    guest = await asyncio.start_unix_server(serving.guest, directory / SOCKET_NAME)
    running = asyncio.create_task(Relay(directory, directory).serve(port))
    try:
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(ConnectionRefusedError):
                    (await serving.connect())[1].close()
                    break
                await asyncio.sleep(0.01)
        yield serving
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        guest.close()


async def test_only_the_token_passes(tmp_path: Path) -> None:
    """A keeper's bytes reach the guest and come back; a caller with another token reaches nobody (lesson 31)."""
    async with relay(tmp_path) as serving, asyncio.timeout(60):
        assert await serving.say(await serving.connect(), serving.keys.token, b"hello") == b"hello"
        wrong = serving.keys.token[:-1] + ("0" if serving.keys.token[-1] != "0" else "1")
        assert await serving.say(await serving.connect(), wrong, b"hello") == b""
        assert serving.greeted == 1


async def test_strangers_do_not_shut_a_keeper_out(tmp_path: Path) -> None:
    """A box reaches the relay too: any number of connections that send no token leave room for its keeper, at once."""
    async with relay(tmp_path) as serving, asyncio.timeout(60):
        strangers = [await serving.connect() for _ in range(80)]
        assert await serving.say(await serving.connect(), serving.keys.token, b"hello") == b"hello"
        oldest, _ = strangers[0]
        with contextlib.suppress(ConnectionError):
            assert await oldest.read() == b"", "the oldest stranger had to go"
        for _, writer in strangers:
            writer.transport.abort()


async def test_a_relay_cannot_be_replaced_by_the_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever listens at the port without the box's key is not believed: no token is sent to it (lesson 31)."""
    async with relay(tmp_path) as serving:
        monkeypatch.setattr(lanes, "PORT", serving.port)
        other = new_keys("box")
        with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await lanes.connect_directly("127.0.0.1", other.certificate, serving.keys.token, None)
        assert serving.greeted == 0
