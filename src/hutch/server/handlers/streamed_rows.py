"""Answers of many rows, encoded while the rows arrive, so that only a few are held at a time."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing

from hutch.model.record import encode_json
from hutch.server.request import Reply
from hutch.server.wire import PIECE_BYTES

Summary = Callable[[object], Mapping[str, object] | None]
"""Gives the fields of the last item, which follow the rows; None if the item is a row."""


async def stream_rows(name: str, rows: AsyncGenerator[object, None], summary: Summary = lambda _: None) -> Reply:
    """`{name: [row, …], …}`. A small answer is sent at once, with its length; an error cuts off a large one."""
    pieces = _encode(name, rows, summary)
    first = await anext(pieces)
    second = await anext(pieces, None)
    return Reply(first) if second is None else Reply(_chain(first, second, pieces))


async def _chain(first: bytes, second: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        yield first
        yield second
        async for piece in rest:
            yield piece


async def _encode(name: str, rows: AsyncGenerator[object, None], summary: Summary) -> AsyncGenerator[bytes, None]:
    part = bytearray(f'{{"{name}":['.encode())
    last: Mapping[str, object] = {}
    separator = b""
    async with aclosing(rows):
        async for row in rows:
            if (found := summary(row)) is not None:
                last = found
                continue
            part += separator
            separator = b","
            for written in _encode_row(row):
                part += written
                if len(part) >= PIECE_BYTES:
                    yield bytes(part)
                    part.clear()
                    await asyncio.sleep(0)  # Other requests are served in between.
    part += b"]"
    for field, value in last.items():
        part += b"," + encode_json(field) + b":" + encode_json(value)
    yield bytes(part + b"}")


def _encode_row(row: object) -> Iterator[bytes]:
    if not isinstance(row, str) or len(row) <= PIECE_BYTES:
        yield encode_json(row)
        return
    yield b'"'
    for start in range(0, len(row), PIECE_BYTES):
        yield encode_json(row[start : start + PIECE_BYTES])[1:-1]
    yield b'"'
