"""Trees over HTTP from somebody who lies: neither a server nor a client gets a file outside its target."""

import asyncio
import json
from pathlib import Path

import pytest

from hutch import Hutch
from hutch.client.handle import Handle
from hutch.client.transfer import copy_out
from hutch.client.transport.connections import address_of
from hutch.client.transport.requests import Server as Reached
from hutch.errors import Unavailable
from tests.client.conftest import QUICK
from tests.client.test_connection import unix
from tests.server.serving import Server

TOP = {"path": "", "kind": "directory", "mode": 493, "mtime": 0}
FILE = b"\x01\x01\x00\x00\x00\x00\x00\x00\x00x\x00\x00\x00\x00\x00\x00\x00\x00\x00"
ESCAPES = (
    [{"path": "../out", "kind": "file", "mode": 420, "mtime": 0}],
    [{"path": "/tmp/hutch-out", "kind": "file", "mode": 420, "mtime": 0}],
    [{"path": "a/../../out", "kind": "file", "mode": 420, "mtime": 0}],
    [{"path": "l", "kind": "symlink", "target": ".."}, {"path": "l/out", "kind": "file", "mode": 420, "mtime": 0}],
)


def stream(entries: list[dict[str, object]]) -> bytes:
    lines = b""
    for entry in [TOP, *entries]:
        lines += json.dumps(entry).encode() + b"\n" + (FILE if entry["kind"] == "file" else b"")
    return lines


@pytest.mark.parametrize("entries", ESCAPES)
async def test_a_server_that_lies(wire: Path, tmp_path: Path, entries: list[dict[str, object]]) -> None:
    """Names that would leave the target are refused, and a symlink on the way is not followed."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = stream(entries)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    listening = await asyncio.start_unix_server(talk, str(wire))
    reached = Reached(address_of(f"unix:{wire}"), rhythm=QUICK)
    try:
        with pytest.raises(OSError):
            await copy_out(Handle(reached, "s", "a" * 20, None), "d", tmp_path / "in" / "target", 1 << 30)
    finally:
        await reached.close()
        listening.close()
    assert not (tmp_path / "out").exists() and not (tmp_path / "in" / "out").exists()
    assert not Path("/tmp/hutch-out").exists()


async def test_a_stream_that_breaks_off(wire: Path, tmp_path: Path) -> None:
    """Half a tree is an error, not a tree."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        body = stream([{"path": "f", "kind": "file", "mode": 420, "mtime": 0}])
        writer.write(b"%x\r\n%s\r\n" % (len(body), body))
        writer.close()

    listening = await asyncio.start_unix_server(talk, str(wire))
    reached = Reached(address_of(f"unix:{wire}"), rhythm=QUICK)
    try:
        with pytest.raises(Unavailable):
            await copy_out(Handle(reached, "s", "a" * 20, None), "d", tmp_path / "target", 1 << 30)
    finally:
        await reached.close()
        listening.close()


@pytest.mark.parametrize("entries", ESCAPES)
async def test_a_client_that_lies(server: Server, entries: list[dict[str, object]]) -> None:
    """What it sends is taken apart in the box, by the box's user, and still nothing leaves the target."""
    async with Hutch(unix(server), rhythm=QUICK) as hutch, hutch.box() as box:
        client = server.unix(hutch_session=hutch.session)
        answer = await asyncio.to_thread(
            client.call, "PUT", f"/v1/boxes/{box.id}/files/tree?path=in/target", stream(entries)
        )
        assert answer.status in (403, 409, 422), answer
        assert not await box.files.exists("in/out") and not await box.files.exists("/tmp/hutch-out")
