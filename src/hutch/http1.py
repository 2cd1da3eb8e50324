"""HTTP/1.1 answers, parsed for every client in Hutch: status lines, headers, and chunked or length-delimited bodies.

The peer may be hostile or no HTTP server at all, so every length is bounded and checked. Bodies are passed on in the
pieces in which they arrive, so that large ones are never copied.
"""

from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

MAX_HEAD = 256 << 10
"""Most bytes of a status line with its headers."""
MAX_LINE = 1 << 10
"""Most bytes of a line in a chunked body: a chunk's size, or a trailer."""
MAX_TRAILERS = 100
MAX_INTERIM = 16
"""Most interim answers (1xx) before the final one."""
MAX_DIGITS = 18
"""Most digits of a length. Python needs quadratic time for long numbers and refuses very long ones."""

_HEX = b"0123456789abcdefABCDEF"


class ProtocolError(ValueError):
    """The peer does not speak HTTP/1.1. The message says what is wrong with its answer."""


class Truncated(EOFError):
    """The stream ended within an answer."""


class Source(Protocol):
    """The bytes of a connection."""

    async def receive(self) -> bytes:
        """Return the next bytes, or none at the end of the stream."""

    def unread(self, data: bytes) -> None:
        """Put bytes back that the next `receive` returns."""


class Head(NamedTuple):
    """Status and headers of an answer. Names are in lower case, and the first of equal names counts."""

    status: int
    headers: dict[str, str]

    @property
    def has_body(self) -> bool:
        return self.status not in (204, 304)

    @property
    def is_chunked(self) -> bool:
        return self.headers.get("transfer-encoding", "").lower() == "chunked"

    @property
    def ends_by_close(self) -> bool:
        """Whether only the end of the connection ends the body."""
        return self.has_body and not self.is_chunked and "content-length" not in self.headers


def parse_head(head: bytes) -> Head:
    """Parse a status line and headers, without the empty line that ends them."""
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(None, 2)
    if not words or not words[0].startswith("HTTP/1."):
        raise ProtocolError("it does not speak HTTP/1.1")
    if len(words) < 2 or len(words[1]) != 3 or not (words[1].isascii() and words[1].isdigit()):
        raise ProtocolError("its answer has no status")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers.setdefault(name.strip().lower(), value.strip())
    return Head(int(words[1]), headers)


async def read_head(source: Source) -> Head:
    """Read status and headers of the final answer, and skip interim ones such as 100 Continue."""
    cursor = _Cursor(source)
    for _ in range(MAX_INTERIM):
        head = parse_head(await cursor.until(b"\r\n\r\n", MAX_HEAD, "its head"))
        if head.status >= 200:
            cursor.release()
            return head
    raise ProtocolError("its interim answers do not end")


def read_body(source: Source, head: Head) -> AsyncIterator[bytes]:
    """Read the body of an answer in the pieces in which it arrives."""
    if not head.has_body:
        return _sized(source, 0)
    if head.is_chunked:
        return _chunked(source)
    length = head.headers.get("content-length")
    return _until_close(source) if length is None else _sized(source, _length(length))


async def _sized(source: Source, left: int) -> AsyncIterator[bytes]:
    while left:
        piece = await _receive(source)
        if len(piece) > left:
            source.unread(piece[left:])
            piece = piece[:left]
        left -= len(piece)
        yield piece


async def _chunked(source: Source) -> AsyncIterator[bytes]:
    cursor = _Cursor(source)
    while left := _chunk_size(await cursor.line()):
        while left:
            piece = await cursor.take(left)
            left -= len(piece)
            yield piece
        if await cursor.line():
            raise ProtocolError("a chunk is longer than it said")
    for _ in range(MAX_TRAILERS):
        if not await cursor.line():
            cursor.release()
            return
    raise ProtocolError("its trailers do not end")


async def _until_close(source: Source) -> AsyncIterator[bytes]:
    while piece := await source.receive():
        yield piece


def _length(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        raise ProtocolError(f"a body of {text[:40]!r} bytes")
    return int(text)


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    # `int` alone would take a sign, an underscore and a prefix too.
    if not digits or len(digits) > MAX_DIGITS or digits.strip(_HEX):
        raise ProtocolError("a chunk has no size")
    return int(digits, 16)


class _Cursor:
    """A position in the received data. Putting the rest back for each chunk would cost quadratic time."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._data = b""
        self._at = 0

    async def take(self, most: int) -> bytes:
        """Return the next bytes, at most so many."""
        await self._fill()
        piece = self._data[self._at : self._at + most]
        self._at += len(piece)
        return piece

    async def line(self) -> bytes:
        return await self.until(b"\r\n", MAX_LINE, "a line")

    async def until(self, mark: bytes, most: int, what: str) -> bytes:
        """Return the bytes before the mark, and skip the mark."""
        await self._fill()
        end = self._data.find(mark, self._at)
        if end < 0:
            found = bytearray(self._data[self._at :])
            while end < 0:
                if len(found) > most:
                    raise ProtocolError(f"{what} does not end")
                start = max(0, len(found) - len(mark) + 1)
                found += await _receive(self._source)
                end = found.find(mark, start)
            self._data, self._at = bytes(found), 0
        text = self._data[self._at : end]
        self._at = end + len(mark)
        return text

    async def _fill(self) -> None:
        if self._at == len(self._data):
            self._data, self._at = await _receive(self._source), 0

    def release(self) -> None:
        """Put back what belongs to the next answer or body."""
        self._source.unread(self._data[self._at :])


async def _receive(source: Source) -> bytes:
    if not (data := await source.receive()):
        raise Truncated("the answer was cut off")
    return data
