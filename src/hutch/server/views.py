"""What callers see of results and output; large ones in pieces, so that writing them down holds up nobody else."""

import base64
import binascii
import codecs
from collections.abc import Iterator
from typing import Any

import msgspec

from hutch.model.record import encoded
from hutch.model.results import Chunk, Result

SMALL = 64 << 10
"""Bytes of output that are written down at once; and of each piece of what has more."""
_IN_BASE64 = SMALL // 3 * 3
"""Bytes of a piece in base64, which makes four characters of three bytes."""


def result_view(result: Result) -> dict[str, Any]:
    """The fields of `Result`; the output as text, and as base64 beside it where the text would lose bytes."""
    plain = without_output(result)
    for stream in ("stdout", "stderr"):
        plain |= text_and_base64(stream, getattr(result, f"{stream}_bytes"))
    return plain


def without_output(result: Result) -> dict[str, Any]:
    plain = result.but(stdout_bytes=b"", stderr_bytes=b"").to_plain()
    del plain["stdout_bytes"], plain["stderr_bytes"]
    return plain


def chunk_view(chunk: Chunk) -> dict[str, Any]:
    return {
        **text_and_base64("text", chunk.data), "cursor": chunk.cursor, "eof": chunk.eof, "dropped": chunk.dropped
    }  # fmt: skip


def text_and_base64(name: str, data: bytes) -> dict[str, str]:
    """`{name: text}`, and `{name}_base64` if the text does not hold every byte."""
    text = data.decode("utf-8", "replace")
    if text.encode() == data:
        return {name: text}
    return {name: text, f"{name}_base64": base64.b64encode(data).decode()}


class WrittenResult:
    """A result that is written down piece by piece, as often as it is asked for: its JSON can be six times as long."""

    def __init__(self, result: Result) -> None:
        self._result = result
        self.size = len(result.stdout_bytes) + len(result.stderr_bytes)

    def pieces(self) -> Iterator[bytes]:
        yield encoded(without_output(self._result))[:-1]
        for stream in ("stdout", "stderr"):
            yield from _text_and_base64(stream, getattr(self._result, f"{stream}_bytes"))
        yield b"}"


def _text_and_base64(name: str, data: bytes) -> Iterator[bytes]:
    """The fields of `text_and_base64` as parts of a JSON object."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    replaced = False
    yield f',"{name}":"'.encode()
    with memoryview(data) as view:
        for start in range(0, len(data), SMALL):
            text = decoder.decode(view[start : start + SMALL], final=start + SMALL >= len(data))
            replaced = replaced or "\ufffd" in text
            yield msgspec.json.encode(text)[1:-1]
        yield b'"'
        if not replaced or _is_utf8(view):
            return
        yield f',"{name}_base64":"'.encode()
        for start in range(0, len(data), _IN_BASE64):
            yield binascii.b2a_base64(view[start : start + _IN_BASE64], newline=False)
        yield b'"'


def _is_utf8(view: memoryview) -> bool:
    """The character that stands for lost bytes may also have been written by the command itself."""
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    try:
        for start in range(0, len(view), SMALL):
            decoder.decode(view[start : start + SMALL], final=start + SMALL >= len(view))
    except UnicodeDecodeError:
        return False
    return True
