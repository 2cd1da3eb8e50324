"""The HTTP client against peers that are no HTTP servers, answer early, or lie about lengths."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hutch.client.transport.connections import ConnectionPool, address_of
from hutch.client.transport.http import ConnectionBroken, NotConnected, Response
from hutch.errors import Unavailable

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@asynccontextmanager
async def pool_to(path: Path, talk: Talk) -> AsyncIterator[ConnectionPool]:
    """A pool of connections to something that listens there."""
    server = await asyncio.start_unix_server(talk, str(path))
    pool = ConnectionPool(address_of(f"unix:{path}"))
    try:
        yield pool
    finally:
        pool.dispose()
        server.close()


def saying(data: bytes, *, close: bool = True) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for start in range(0, len(data), 7):  # in pieces that end anywhere
            writer.write(data[start : start + 7])
            await writer.drain()
            await asyncio.sleep(0)
        if close:
            writer.close()

    return talk


async def answered(path: Path, data: bytes, *, close: bool = True) -> tuple[int, bytes]:
    async with pool_to(path, saying(data, close=close)) as pool:
        response = await pool.ask(HEAD, None)
        return response.status, await response.read_all()


@pytest.mark.parametrize(
    ("data", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nCONTENT-length:5\r\n\r\nhello", b"hello"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nT: v\r\n\r\n",
            b"hello",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", b"to the end"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
    ],
)
async def test_answers(wire: Path, data: bytes, body: bytes) -> None:
    status, got = await answered(wire, data)
    assert (status in (200, 204), got) == (True, body)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"",
    ],
)
async def test_what_breaks_off_is_no_answer(wire: Path, data: bytes) -> None:
    """Nobody takes half an answer for a whole one."""
    with pytest.raises(ConnectionBroken):
        await answered(wire, data)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 two\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 3000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"T: v\r\n" * 200,
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
        b"x" * 300_000,
    ],
)
async def test_what_is_no_hutch(wire: Path, data: bytes) -> None:
    """Named as what it is, and not retried."""
    with pytest.raises(Unavailable, match="no Hutch server") as raised:
        await answered(wire, data, close=False)
    assert not raised.value.retryable


async def test_connections_are_kept_and_dropped(wire: Path) -> None:
    """One connection serves request after request; one that the server closed is not used again; a body that was left
    half read breaks it off."""
    made = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal made
        made += 1
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            size = 1 << 24 if b"/large" in head else 2
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))
            if b"/bye" in head:
                writer.close()
                return

    async with pool_to(wire, talk) as pool:

        async def ask(path: bytes) -> Response:
            return await pool.ask(HEAD.replace(b"/ ", path + b" "), None)

        for _ in range(5):
            assert await (await ask(b"/")).read_all() == bytes(2)
        assert made == 1
        await asyncio.gather(*[(await ask(b"/")).read_all() for _ in range(3)])
        assert made == 3, "as many as there are requests at once"
        for _ in range(3):
            connection = [each for each in pool._idle if each.usable][-1]
            await (await ask(b"/bye")).read_all()
            await connection.closed
        await (await ask(b"/")).read_all()
        assert made == 4
        pieces = (await ask(b"/large")).pieces()
        await anext(pieces)
        await pieces.aclose()  # type: ignore[attr-defined]
        before = made
        await (await ask(b"/")).read_all()
        assert made == before + 1


async def test_an_answer_that_comes_before_the_body_has_ended(wire: Path) -> None:
    """A refusal in the middle of an upload is read, and the rest is not sent."""
    sent = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\n{}")

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield bytes(65536)

    async with pool_to(wire, talk) as pool:
        for body in (endless(), bytes(64 << 20)):
            head = HEAD.replace(b"GET", b"PUT")
            response = await pool.ask(head, body)
            assert (response.status, await response.read_all()) == (413, b"{}")
    assert sent


async def test_back_pressure(wire: Path) -> None:
    """Unread data stays with the server: only a bounded part of an answer is held here."""
    written = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1 << 30))
        for _ in range(1 << 14):
            writer.write(bytes(1 << 16))
            await writer.drain()
            written += 1 << 16

    async with pool_to(wire, talk) as pool:
        response = await pool.ask(HEAD, None)
        before = -1
        while before != written:  # until the server is stuck
            before = written
            for _ in range(100):
                await asyncio.sleep(0)
        assert written < 32 << 20
        response.close()


async def test_nobody_there(wire: Path) -> None:
    with pytest.raises(NotConnected, match="no server answers"):
        await ConnectionPool(address_of(f"unix:{wire}")).ask(HEAD, None)
    with pytest.raises(NotConnected):
        await ConnectionPool(address_of("http://127.0.0.1:1")).ask(HEAD, None)
