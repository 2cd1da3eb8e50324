"""A guest that lies about files: the caller gets BoxBroken or a refusal, and nothing leaves the target of a copy.

The guest is a script here: a real one does not lie, and a captured one cannot be had on demand.
"""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hutch.errors import BoxBroken, FileFailed, HutchError
from hutch.guest.files.trees import DATA as CONTENT
from hutch.guest.files.trees import END, PIECE
from hutch.guest.protocol import DATA, ERROR, EVENT, HEADER, HEADER_SIZE, HELLO, REPLY, REQUEST, frame
from hutch.providers.guest_client.files import GuestFiles
from hutch.providers.guest_client.link import Link

Answer = list[tuple[int, bytes]]


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


@asynccontextmanager
async def lying(*answer: tuple[int, bytes]) -> AsyncIterator[GuestFiles]:
    """Files of a guest that gives this answer to every request."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=theirs)
    writer.write(frame(HELLO, 0, encoded({"version": 1, "box_id": "box"})))

    async def serve() -> None:
        while True:
            length, kind, channel = HEADER.unpack(await reader.readexactly(HEADER_SIZE))
            await reader.readexactly(length)
            if kind == REQUEST:
                for answer_kind, payload in answer:
                    writer.write(frame(answer_kind, channel, payload))

    task = asyncio.create_task(serve())
    link = await Link.over(ours)

    async def connect() -> Link:
        return link

    try:
        yield GuestFiles(connect, lambda _: 1 << 40)
    finally:
        link.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        writer.close()


Call = Callable[[GuestFiles], Awaitable[Any]]
EMPTY = (REPLY, b"{}")
INFO = {"path": "x", "kind": "file", "size": 1, "mode": 1, "uid": 1, "gid": 1, "mtime": 1.0}


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (lambda files: files.stat("x"), [EMPTY]),
        (lambda files: files.stat("x"), [(REPLY, encoded({**INFO, "kind": "box"}))]),
        (lambda files: files.stat("x"), [(REPLY, encoded({**INFO, "size": "1"}))]),
        (lambda files: files.exists("x"), [(REPLY, encoded({"exists": "no"}))]),
        (lambda files: files.digest("x"), [EMPTY]),
        (lambda files: files.write("x", b""), [EMPTY]),
        (lambda files: files.edit("x", b"a", b"b"), [EMPTY]),
        (lambda files: files.read("x", limit=3), [(DATA, b"1234"), EMPTY]),
        (lambda files: files.read("x"), [(EVENT, b"{}"), EMPTY]),
        (lambda files: files.read_lines("x"), [(DATA, b"1234"), EMPTY]),
        (lambda files: files.list("x"), [(DATA, b"{}\n"), EMPTY]),
        (lambda files: files.list("x"), [(DATA, b"["), EMPTY]),
        (lambda files: files.list("x"), [(DATA, b"[" * 200_000 + b"\n"), EMPTY]),
        (lambda files: files.list("x"), [(DATA, b"[" * 600_000), EMPTY]),
        (lambda files: files.glob("*", limit=2), [(DATA, b'"a"\n"b"\n"c"\n'), (REPLY, b'{"notes": []}')]),
        (lambda files: files.glob("*"), [(DATA, b"7\n"), (REPLY, b'{"notes": []}')]),
        (lambda files: files.grep("x", limit=1), [(DATA, b'{"path":"a","line":1,"text":"x"}\n' * 2), EMPTY]),
        (lambda files: files.grep("x"), [(DATA, b'{"path":1}\n'), EMPTY]),
        (lambda files: anext(files.watch()), [(DATA, b'{"kind":"ready","path":""}\n{"kind":"odd","path":""}\n')]),
        (lambda files: anext(files.watch()), [(DATA, b"null\n")]),
    ],
    ids=range(20),
)  # fmt: skip
async def test_nonsense_is_a_broken_box(call: Call, answer: Answer) -> None:
    async with lying(*answer) as files:
        with pytest.raises(BoxBroken):
            await call(files)


@pytest.mark.parametrize("code", ["gone", "lease_lost", "not_found", "disabled", "no_such_code"])
async def test_a_guest_cannot_speak_for_the_keeper(code: str) -> None:
    """An error of a file operation is about files: `gone` from a captured guest must not end its box's record."""
    async with lying((ERROR, encoded({"code": code, "message": "lies"}))) as files:
        with pytest.raises(HutchError, match="lies") as caught:
            await files.read("x")
        assert caught.value.code in ("file_failed", "internal")
    row = encoded({"failed": {"code": code, "message": "lies"}}) + b"\n"
    async with lying((DATA, row), EMPTY) as files:
        with pytest.raises(FileFailed, match="lies"):
            await files.grep("x")


def stream(*entries: tuple[str, str]) -> bytes:
    out = b""
    for path, kind in entries:
        out += encoded({"path": path, "kind": kind, "mode": 0o6777, "mtime": 0, "target": "/etc"}) + b"\n"
        if kind == "file":
            out += PIECE.pack(CONTENT, 4) + b"evil" + PIECE.pack(END, 0)
    return out


@pytest.mark.parametrize(
    "entries",
    [
        [("", "directory"), ("../evil", "file")],
        [("", "directory"), ("/tmp/evil", "file")],
        [("", "directory"), ("a", "symlink"), ("a/evil", "file")],
        [("../evil", "file")],
        [("", "symlink")],
        [("", "directory"), ("d", "directory"), ("d/../../evil", "file")],
        [],
    ],
    ids=range(7),
)
async def test_a_hostile_tree_stays_in_its_target(tmp_path: Path, entries: list[tuple[str, str]]) -> None:
    async with lying((DATA, stream(*entries)), EMPTY) as files:
        with pytest.raises(HutchError):
            await files.copy_out("tree", tmp_path / "inside/target")
    assert os.listdir(tmp_path) == ["inside"]
    names = [name for _, _, found in os.walk(tmp_path) for name in found]
    assert "evil" not in names
    assert not [name for name in names if name.startswith(".hutch-")]


async def test_a_name_for_the_file_is_the_hosts_word(tmp_path: Path) -> None:
    """A file that is copied into a directory gets the name that was asked for, not one from the stream."""
    async with lying((DATA, stream(("", "file"))), EMPTY) as files:
        assert await files.copy_out("../some/name", tmp_path) == 4
        assert os.listdir(tmp_path) == ["name"]
        assert (tmp_path / "name").stat().st_mode & 0o7777 == 0o777
        with pytest.raises(HutchError):
            await files.copy_out("some/..", tmp_path)
