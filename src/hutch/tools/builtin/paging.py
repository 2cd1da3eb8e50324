"""Splits a byte stream into pages by lines or bytes without loss: every page says where the next one begins."""

from collections.abc import AsyncIterator
from typing import NamedTuple

PAGE_LINES = 2000
PAGE_BYTES = 50_000


class LinePosition(NamedTuple):
    """The line number and byte offset at which a line begins."""

    line: int = 1
    byte: int = 0


FILE_START = LinePosition()


class Page(NamedTuple):
    data: bytes
    start_byte: int
    next_byte: int
    """Offset of the first byte after this page."""
    next_line: int | None
    """Number of the first line after this page. None if pages are by bytes, or if this one ends within a line."""
    first_line: int | None
    eof: bool
    """Nothing follows this page, as far as is known."""


async def by_bytes(pieces: AsyncIterator[bytes], offset: int, limit: int) -> Page:
    """Return the page of `limit` bytes at `offset`, where `pieces` begin."""
    data = bytearray()
    async for piece in pieces:
        data += piece
        if len(data) > limit:
            break
    eof = len(data) <= limit
    del data[limit:]
    return Page(bytes(data), offset, offset + len(data), None, None, eof)


async def by_lines(
    pieces: AsyncIterator[bytes], first: int, count: int, *, at: LinePosition = FILE_START, max_bytes: int = PAGE_BYTES
) -> Page:
    """Return `count` lines from line `first` on, or fewer if they are long. `pieces` begin `at` that line or earlier.

    A line that is longer than a page is cut. Its page has no `next_line`, and `next_byte` points into the line.
    """
    skip, start = first - at.line, at.byte
    data = bytearray()
    more = False
    async for piece in pieces:
        if skip:
            begin, skip = _after_lines(piece, skip)
            start += begin
            if skip:
                continue
            piece = piece[begin:]
        data += piece
        if len(data) > max_bytes or data.count(b"\n") > count:
            more = True
            break
    end = _end_of_lines(data, count)
    if end > max_bytes:
        whole = data.rfind(b"\n", 0, max_bytes) + 1
        end = whole or max_bytes
    eof = not more and end == len(data)
    page = bytes(data[:end])
    cut = not eof and not page.endswith(b"\n")
    next_line = None if cut else first + page.count(b"\n") + (0 if page.endswith(b"\n") or not page else 1)
    return Page(page, start, start + end, next_line, first, eof)


def _after_lines(piece: bytes, wanted: int) -> tuple[int, int]:
    """Return the end of the `wanted`-th line of the piece, and how many lines are still missing."""
    if piece.count(b"\n") < wanted:
        return len(piece), wanted - piece.count(b"\n")
    position = 0
    while wanted:
        position = piece.index(b"\n", position) + 1
        wanted -= 1
    return position, 0


def _end_of_lines(data: bytearray, count: int) -> int:
    position = 0
    for _ in range(count):
        found = data.find(b"\n", position)
        if found < 0:
            return len(data)
        position = found + 1
    return position
