"""Content of a channel as bytes or as lines of JSON, within bounds that the guest cannot stretch."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from hutch.errors import BoxBroken
from hutch.guest.protocol import DATA
from hutch.providers.guest_client.channel import Channel

MAX_ROW = 256 << 10
"""The most bytes of a row: a path has at most 4 kB, and JSON makes six characters of an odd byte."""
MAX_ROWS_BYTES = 256 << 20


async def content_of(channel: Channel, bound: int | None) -> AsyncIterator[bytes]:
    """Yield the DATA of a channel until its answer, which is raised if it is an error."""
    received = 0
    async for kind, content in channel:
        if kind != DATA:
            raise BoxBroken(f"the guest sent a frame of kind {kind} where content was asked for")
        received += len(content)
        if bound is not None and received > bound:
            raise BoxBroken(f"the guest sent more than the {bound} bytes it was asked for")
        yield content


async def rows_of(channel: Channel, most: int | None = None) -> AsyncIterator[Any]:
    count = 0
    partial = b""
    async for content in content_of(channel, MAX_ROWS_BYTES):
        *lines, partial = (partial + content).split(b"\n")
        if len(partial) > MAX_ROW:
            raise BoxBroken("the guest sent an endless line")
        for line in lines:
            count += 1
            if most is not None and count > most:
                raise BoxBroken(f"the guest sent more than {most} rows")
            yield row(line)
        await asyncio.sleep(0)  # many rows may have come at once, and other tasks wait for their turn
    if partial:
        raise BoxBroken("the guest sent half a line")


def row(line: bytes) -> Any:
    # Names that are not UTF-8 come as lone surrogates, which msgspec refuses and the standard library decodes.
    try:
        return json.loads(line) if len(line) <= MAX_ROW else None
    except (ValueError, RecursionError) as error:
        raise BoxBroken(f"the guest sent a line that is no JSON: {error}") from error
