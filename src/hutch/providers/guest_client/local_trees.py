"""The host's side of a tree's stream: a path of this machine packed into pieces, pieces unpacked to a path."""

import asyncio
import os
import posixpath
import stat
from collections.abc import AsyncIterator, Callable, Generator
from pathlib import Path
from typing import ParamSpec, TypeVar

from hutch.errors import FileFailed, HutchError, Invalid
from hutch.guest.files.trees import Unpacker, pack
from hutch.guest.operations import Failure, failure
from hutch.logs import log
from hutch.providers.guest_client import trees
from hutch.providers.guest_client.answers import Copied, checked
from hutch.providers.guest_client.trees import max_copy_entries

P = ParamSpec("P")
T = TypeVar("T")


async def packed(path: str) -> AsyncIterator[bytes]:
    """Yield the stream of a file or tree of this machine. Call its `aclose`, because it has descriptors open."""
    notify = trees.listener()
    blocks = pack(await _open_in_thread(_open_source, path), path)
    try:
        while (block := await _in_thread(_next_block, blocks)) is not None:
            yield block
            notify(len(block))
    finally:
        blocks.close()


async def unpacked(pieces: AsyncIterator[bytes], source: str, target: str | Path, most: int) -> int:
    """Unpack the stream of the box's `source` at `target` and return the bytes copied. The box writes the stream, so
    it is not trusted, and may write at most `most` bytes."""
    path = os.path.abspath(target)
    parent, name = os.path.split(path)
    if not name:
        raise Invalid(f"cannot copy to {path!r}: it has no name", remedy="name the file or directory to make")
    into = posixpath.basename(source.rstrip("/"))
    notify = trees.listener()
    directory = await _open_in_thread(_open_parent, parent)
    into = "" if into in (".", "..") else into
    unpacker = Unpacker(directory, name, into, max_bytes=most, max_entries=max_copy_entries(most))
    try:
        async for content in pieces:
            await _in_thread(unpacker.data, content)
            notify(len(content))
        report = checked(await _in_thread(unpacker.end), Copied)
    finally:
        unpacker.abort()
        os.close(directory)
    return check_report(source, report)


def check_report(source: str, report: Copied) -> int:
    """Return the bytes copied, and log what was left out."""
    if report.skipped:
        log("files").warning(
            "special files were left out of a copy", source=source, count=len(report.skipped), some=report.skipped[:10]
        )
    return report.bytes


def _open_source(path: str) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise failure(error, "copy", path) from None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return descriptor
    os.close(descriptor)
    raise FileFailed(f"cannot copy {path!r}: it is neither a file nor a directory")


def _open_parent(parent: str) -> int:
    try:
        os.makedirs(parent, exist_ok=True)
        return os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise failure(error, "copy to", parent) from None


def _next_block(blocks: Generator[bytes | None, None, None]) -> bytes | None:
    """Return the next bytes to send, or None at the end."""
    return next((block for block in blocks if block), None)


async def _open_in_thread(function: Callable[[str], int], path: str) -> int:
    """Return the descriptor that `function` opens. It is closed again if the caller is cancelled meanwhile."""
    opened: list[int] = []
    try:
        await _in_thread(lambda: opened.append(function(path)))
    except asyncio.CancelledError:
        for descriptor in opened:
            os.close(descriptor)
        raise
    return opened[0]


async def _in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a step in a thread. A cancelled call still waits for it, because its descriptors are closed next."""
    step = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(step)
    except asyncio.CancelledError:
        await asyncio.wait([step])
        raise
    except Failure as error:
        raise HutchError.of(error.to_wire()) from error
