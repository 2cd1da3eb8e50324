"""Copies between this machine and a server: trees of files into and out of a box, and whole boxes as files."""

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import IO, cast

from hutch.client.handle import Handle
from hutch.client.transport.requests import BYTES, Repeat, decode_answer
from hutch.errors import FileMissing
from hutch.model.boxes import Moved
from hutch.providers.guest_client.answers import Copied
from hutch.providers.guest_client.local_trees import check_report, packed, unpacked

_PIECE = 1 << 18


async def copy_in(handle: Handle, source: str | Path, target: str) -> int:
    """Copy a file or tree of this machine into the box."""
    path = os.path.abspath(source)
    async with aclosing(cast(AsyncGenerator[bytes, None], packed(path))) as blocks:
        report = await handle.ask(
            Copied, "PUT", "/files/tree", content=blocks, path=target, into=os.path.basename(path) or None,
            repeat=Repeat.NEVER,
        )  # fmt: skip
    return check_report(path, report)


async def copy_out(handle: Handle, source: str, target: str | Path, most: int) -> int:
    """Copy a file or tree of the box to this machine, with at most `most` bytes on disk."""
    async with aclosing(cast(AsyncGenerator[bytes, None], _received(handle, source))) as pieces:
        return await unpacked(pieces, source, target, most)


async def _received(handle: Handle, source: str) -> AsyncIterator[bytes]:
    async with handle.stream("GET", "/files/tree", accept=BYTES, path=source) as response:
        async for piece in response.pieces():
            yield piece


async def export(handle: Handle, file: str | Path) -> Moved:
    """Write a box to a file. The file appears complete or not at all."""
    target = Path(file)
    draft = target.with_name(f"{target.name}.{secrets.token_hex(4)}~")
    try:
        async with handle.stream("GET", "/export", accept=BYTES, repeat=Repeat.UNSENT) as response:
            with await asyncio.to_thread(_created, draft) as out:
                async for piece in response.pieces():
                    await asyncio.to_thread(out.write, piece)
        draft.rename(target)
    finally:
        draft.unlink(missing_ok=True)
    return decode_answer(response.headers["hutch-moved"], Moved)


async def read_file(file: str | Path) -> AsyncIterator[bytes]:
    try:
        opened = await asyncio.to_thread(open, file, "rb")
    except FileNotFoundError as error:
        raise FileMissing(f"there is no {file}", op="import") from error
    with opened:
        while piece := await asyncio.to_thread(opened.read, _PIECE):
            yield piece


def _created(path: Path) -> IO[bytes]:
    """Create a file that only this user can read, because it holds a whole box."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
