"""Answers of many rows, written down as the rows come: however many there are, few are held at a time."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing

from hutch.model.record import encoded
from hutch.server.request import Reply
from hutch.server.views import SMALL

Summary = Callable[[object], Mapping[str, object] | None]
"""What the last item says beside the rows; None: the item is a row."""


async def in_pieces(name: str, rows: AsyncGenerator[object, None], summary: Summary = lambda _: None) -> Reply:
    """`{name: [row, …], …}`. What is small is sent as one, with its length; an error of what is large breaks it off."""
    pieces = _pieces(name, rows, summary)
    first = await anext(pieces)
    second = await anext(pieces, None)
    return Reply(first) if second is None else Reply(_all(first, second, pieces))


async def _all(first: bytes, second: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        yield first
        yield second
        async for piece in rest:
            yield piece


async def _pieces(name: str, rows: AsyncGenerator[object, None], summary: Summary) -> AsyncGenerator[bytes, None]:
    part = bytearray(f'{{"{name}":['.encode())
    told: Mapping[str, object] = {}
    separator = b""
    async with aclosing(rows):
        async for row in rows:
            if (found := summary(row)) is not None:
                told = found
                continue
            part += separator
            separator = b","
            for written in _written(row):
                part += written
                if len(part) >= SMALL:
                    yield bytes(part)
                    part.clear()
                    await asyncio.sleep(0)  # others want to be served too
    part += b"]"
    for field, value in told.items():
        part += b"," + encoded(field) + b":" + encoded(value)
    yield bytes(part + b"}")


def _written(row: object) -> Iterator[bytes]:
    if not isinstance(row, str) or len(row) <= SMALL:
        yield encoded(row)
        return
    yield b'"'
    for start in range(0, len(row), SMALL):
        yield encoded(row[start : start + SMALL])[1:-1]
    yield b'"'
