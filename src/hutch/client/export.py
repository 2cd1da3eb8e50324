"""Boxes as files of this machine, to and from a server."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

from hutch.client.answers import answered
from hutch.client.handle import Handle
from hutch.client.requests import BYTES, Repeat
from hutch.errors import FileMissing
from hutch.model.boxes import Moved

_PIECE = 1 << 18


async def export(handle: Handle, file: str | Path) -> Moved:
    """The file is there as a whole or not at all."""
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
    return answered(response.headers["hutch-moved"], Moved)


async def pieces(file: str | Path) -> AsyncIterator[bytes]:
    try:
        opened = await asyncio.to_thread(open, file, "rb")
    except FileNotFoundError as error:
        raise FileMissing(f"there is no {file}", op="import") from error
    with opened:
        while piece := await asyncio.to_thread(opened.read, _PIECE):
            yield piece


def _created(path: Path) -> IO[bytes]:
    """Nobody else's business: it holds a whole box."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
