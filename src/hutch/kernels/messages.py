"""What a kernel says to its keeper: lines of JSON, bounded and checked, because the code can write them too."""

from collections.abc import Iterator

import msgspec

from hutch.model.code import CodeError

MAX_LINE = 12 << 20
"""Longest message. The kernel's programs send less; whatever is longer was written by the code itself."""


class Ready(msgspec.Struct, tag_field="type", tag="ready"):
    """The kernel can take code."""

    version: str = ""
    notes: tuple[str, ...] = ()


class Printed(msgspec.Struct, tag_field="type", tag="stream"):
    """Text that the code printed."""

    run: str
    name: str
    text: str


class Shown(msgspec.Struct, tag_field="type", tag="display"):
    """One display in all its forms."""

    run: str
    data: dict[str, str]
    main: bool = False


class Done(msgspec.Struct, tag_field="type", tag="done"):
    """The code has ended."""

    run: str
    count: int = 0
    error: CodeError | None = None
    dropped: int = 0


class Forked(msgspec.Struct, tag_field="type", tag="forked"):
    """The kernel has forked itself; the copy waits to be taken along."""

    run: str
    pid: int
    """Its pid in the box."""


Message = Ready | Printed | Shown | Done | Forked
_decoder = msgspec.json.Decoder(Message)


class Lines:
    """Splits a kernel's output into messages. Lines that are no message are counted and left out."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self.consumed = 0
        """Bytes up to the end of the last message that was returned."""
        self.rejected = 0

    def feed(self, data: bytes) -> Iterator[Message]:
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole = b"".join((*self._parts, line))
            self.consumed += self._size + len(line) + 1
            too_long = self._size + len(line) > MAX_LINE
            self._parts, self._size = [], 0
            message = None if too_long else _decoded(whole)
            if message is None:
                self.rejected += 1
            else:
                yield message
        self._size += len(rest)
        if rest and self._size <= MAX_LINE:
            self._parts.append(rest)


def _decoded(line: bytes) -> Message | None:
    try:
        message: Message = _decoder.decode(line)
        return message
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
