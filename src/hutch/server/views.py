"""What callers see of boxes, results and output."""

import base64
from typing import Any

from hutch.model.results import Chunk, Result


def result_view(result: Result) -> dict[str, Any]:
    """The fields of `Result`; the output as text, and as base64 beside it where the text would lose bytes."""
    plain = result.to_plain()
    for stream in ("stdout", "stderr"):
        del plain[f"{stream}_bytes"]
        plain |= text_and_base64(stream, getattr(result, f"{stream}_bytes"))
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
