"""Copying trees between host and box: packed on one side, streamed with back-pressure, unpacked on the other.

A box writes the stream of a copy out of it, and could fill the caller's disk with it, so such a copy has bounds.
A listener gets the byte counts of a copy while it runs.
"""

import os
import posixpath
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import cast

from hutch.model.spec import EffectiveSpec
from hutch.providers.guest_client.answers import Copied, checked
from hutch.providers.guest_client.channel import Channel, content_of

Open = Callable[..., Awaitable[Channel]]

IMAGE_BYTES = 16 << 30
"""The bytes that a copy may have beyond the box's own disk limit, because the image holds them."""
HOST_BYTES = 1 << 40
"""The most bytes of a copy from a mounted host directory, whose size no limit of ours bounds."""
MIN_ENTRIES = 1 << 16
_OWN = ("/workspace", "/tmp")


async def copy_in(begin: Open, source: str | Path, target: str) -> int:
    """Copy a host file or tree into the box and return the bytes copied."""
    from hutch.providers.guest_client.local_trees import (  # it imports the guest's packing, which few processes need
        check_report,
        packed,
    )

    path = os.path.abspath(source)
    async with aclosing(cast(AsyncGenerator[bytes, None], packed(path))) as blocks:
        first = await anext(blocks)  # an unreadable source fails here, before the box is asked
        report = await unpack(begin, _again(first, blocks), target, os.path.basename(path))
    return check_report(path, report)


async def copy_out(begin: Open, source: str, target: str | Path, most: int) -> int:
    """Copy a box's file or tree to the host, where it may take at most `most` bytes on disk."""
    from hutch.providers.guest_client.local_trees import unpacked  # as above

    async with aclosing(cast(AsyncGenerator[bytes, None], pack(begin, source))) as pieces:
        return await unpacked(pieces, source, target, most)


async def unpack(begin: Open, pieces: AsyncIterator[bytes], target: str, into: str) -> Copied:
    """Unpack a tree's stream in the box. `into` is the name that a file gets if `target` is a directory."""
    async with await begin("files.unpack", path=target, into=into) as channel:
        async for piece in pieces:
            await channel.send(piece)
            if channel.done:
                break
        channel.end()
        return checked(await channel.answer(), Copied)


async def pack(begin: Open, source: str) -> AsyncIterator[bytes]:
    """Yield the stream of a box's file or tree."""
    async with await begin("files.pack", path=source) as channel:
        async for content in content_of(channel, None):
            yield content


async def _again(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


Listener = Callable[[int], None]
"""Gets the number of bytes of each piece; a thread may call it."""

_listener: ContextVar[Listener | None] = ContextVar("transfer_listener", default=None)


@contextmanager
def observed(listener: Listener) -> Iterator[None]:
    """Report to `listener` the copies that are begun in this block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def listener() -> Listener:
    """Return the listener of a copy that begins now."""
    return _listener.get() or _ignore


def _ignore(count: int) -> None:
    return None


def max_copy_bytes(spec: EffectiveSpec, source: str) -> int:
    """Return the most bytes on disk that a copy of `source` may have: in the box's own directories, its disk limit."""
    path = posixpath.normpath(posixpath.join(spec.workdir or "/", source))
    mounted = [mount.target for mount in spec.mounts]
    if spec.workspace.source != "own":
        mounted.append("/workspace")
    if any(_overlap(path, target) for target in mounted):
        return HOST_BYTES
    disk = spec.limits.disk_mb << 20
    own = any(path == place or path.startswith(f"{place}/") for place in (*_OWN, spec.workdir or "/workspace"))
    return disk if own else disk + IMAGE_BYTES


def max_copy_entries(most: int) -> int:
    """Return the most entries of a copy of that size: four times what the native engine lets a box create."""
    return max(MIN_ENTRIES, most >> 10)


def _overlap(path: str, target: str) -> bool:
    """Return whether one path lies in the other."""
    return f"{path}/".startswith(f"{target}/".replace("//", "/")) or f"{target}/".startswith(f"{path}/")
