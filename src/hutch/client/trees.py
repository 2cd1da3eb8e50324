"""Trees between this machine and a remote box: the stream of `hutch.guest.files.trees`, carried by HTTP."""

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import cast

from hutch.client.handle import Handle
from hutch.client.requests import BYTES, Repeat
from hutch.providers.guest_client.file_answers import Copied
from hutch.providers.guest_client.local_trees import packed, told, unpacked


async def copy_in(handle: Handle, source: str | Path, target: str) -> int:
    """A file or tree of this machine into the box."""
    path = os.path.abspath(source)
    async with aclosing(cast(AsyncGenerator[bytes, None], packed(path))) as blocks:
        report = await handle.ask(
            Copied, "PUT", "/files/tree", content=blocks, path=target, into=os.path.basename(path) or None,
            repeat=Repeat.NEVER,
        )  # fmt: skip
    return told(path, report)


async def copy_out(handle: Handle, source: str, target: str | Path, most: int) -> int:
    """A box's file or tree to this machine; at most so many bytes on its disk."""
    async with aclosing(cast(AsyncGenerator[bytes, None], _received(handle, source))) as pieces:
        return await unpacked(pieces, source, target, most)


async def _received(handle: Handle, source: str) -> AsyncIterator[bytes]:
    async with handle.stream("GET", "/files/tree", accept=BYTES, path=source) as response:
        async for piece in response.pieces():
            yield piece
