"""Wire forms that are no records of the model: errors, results with output as text, lines of streams, specs.

Large results are encoded piece by piece, so that other requests are served in between.
"""

import base64
import binascii
import codecs
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from hutch.model.limits import LimitsAsked
from hutch.model.record import Record, encode_json
from hutch.model.results import Chunk, Result, Usage, Verdict
from hutch.model.spec import Mount, Spec, Workspace

PIECE_BYTES = 64 << 10
"""Bytes of output that are encoded at once; larger output is encoded in pieces of this size."""
_BASE64_PIECE_BYTES = PIECE_BYTES // 3 * 3
"""Bytes of a piece in base64, which encodes three bytes as four characters."""


class Error(Record, frozen=True, kw_only=True):
    """The body of every error response."""

    code: str
    """The code that programs branch on."""
    message: str
    op: str
    """The operation that failed."""
    retryable: bool
    """The same request may succeed later."""
    retry_after: float | None
    """Seconds to wait before a retry, where that is known."""
    details: dict[str, Any]
    remedy: str
    """What to do about the error; may be empty."""


class Health(Record, frozen=True, kw_only=True):
    ok: bool


class Ready(Record, frozen=True, kw_only=True):
    ready: bool


class ExecResult(Record, frozen=True, kw_only=True):
    """The result of a command, however it ended."""

    job_id: str
    exit_code: int | None
    """128 plus the signal's number if a signal ended the command; null if it never ran to an end."""
    signal: int | None
    stdout: str
    stdout_base64: str | msgspec.UnsetType = msgspec.UNSET
    """Every byte of the output; present only where the text would lose some. The same holds for stderr."""
    stderr: str
    stderr_base64: str | msgspec.UnsetType = msgspec.UNSET
    stdout_total: int
    """Bytes that the command wrote; more than are returned if the middle was left out."""
    stderr_total: int
    stdout_truncated: bool
    stderr_truncated: bool
    lingering: bool
    """Whether descendants still held the output open when the command ended; they are not waited for."""
    verdict: Verdict
    usage: Usage
    notes: tuple[str, ...]
    """Notes for the caller, such as a clamped timeout or a replaced box."""


class OutputChunk(Record, frozen=True, kw_only=True):
    """A piece of a job's output, and the cursor for the next read."""

    text: str
    text_base64: str | msgspec.UnsetType = msgspec.UNSET
    """Every byte; present only where the text would lose some."""
    cursor: int
    """The cursor for the next read of the same stream."""
    eof: bool
    dropped: int
    """Bytes that were lost between the given cursor and the first byte here."""


class ExecLine(Record, frozen=True, kw_only=True):
    """One line of a command's stream: a piece of output, or at the end a result or an error."""

    stream: Literal["stdout", "stderr"] | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    result: ExecResult | msgspec.UnsetType = msgspec.UNSET
    error: Error | msgspec.UnsetType = msgspec.UNSET


class WatchLine(Record, frozen=True, kw_only=True):
    """One line of a watch: its confirmation, a change, or the error that ended it."""

    watching: bool | msgspec.UnsetType = msgspec.UNSET
    path: str | msgspec.UnsetType = msgspec.UNSET
    kind: str | msgspec.UnsetType = msgspec.UNSET
    """created | modified | deleted | moved_from | moved_to | overflow"""
    directory: bool | msgspec.UnsetType = msgspec.UNSET
    error: Error | msgspec.UnsetType = msgspec.UNSET


def _make_spec_form() -> type[msgspec.Struct]:
    """Build the flat form that `hutch.model.arguments` accepts from the records that it produces."""
    forgiving: dict[str, Any] = {
        "workspace": str | Workspace,
        "mounts": tuple[str | Mount, ...],
    }
    fields = [
        (field.name, forgiving.get(field.name, field.type) | None, msgspec.field(default=None))
        for kind in (Spec, LimitsAsked)
        for field in msgspec.structs.fields(kind)
    ]
    return msgspec.defstruct("SpecForm", fields, kw_only=True, forbid_unknown_fields=True, namespace={
        "__doc__": "The requested box; the profile decides what is left out. Limits may be given here or in `limits`, "
        "a mount as `SOURCE:TARGET[:ro|rw]`.",
        "__documented_in__": (Spec, LimitsAsked),
    })  # fmt: skip


SpecForm = _make_spec_form()


# --- results --------------------------------------------------------------------------------------------------------


def result_to_wire(result: Result) -> dict[str, Any]:
    """The fields of `Result`, with the output as text, and as base64 too where the text would lose bytes."""
    plain = without_output(result)
    for stream in ("stdout", "stderr"):
        plain |= text_and_base64(stream, getattr(result, f"{stream}_bytes"))
    return plain


def without_output(result: Result) -> dict[str, Any]:
    plain = result.but(stdout_bytes=b"", stderr_bytes=b"").to_plain()
    del plain["stdout_bytes"], plain["stderr_bytes"]
    return plain


def chunk_to_wire(chunk: Chunk) -> dict[str, Any]:
    return {
        **text_and_base64("text", chunk.data), "cursor": chunk.cursor, "eof": chunk.eof, "dropped": chunk.dropped
    }  # fmt: skip


def text_and_base64(name: str, data: bytes) -> dict[str, str]:
    """`{name: text}`, and `{name}_base64` if the text loses bytes."""
    text = data.decode("utf-8", "replace")
    if text.encode() == data:
        return {name: text}
    return {name: text, f"{name}_base64": base64.b64encode(data).decode()}


class StreamedResult:
    """A result that is encoded piece by piece each time it is sent: its JSON can be six times as long."""

    def __init__(self, result: Result) -> None:
        self._result = result
        self.size = len(result.stdout_bytes) + len(result.stderr_bytes)

    def pieces(self) -> Iterator[bytes]:
        yield encode_json(without_output(self._result))[:-1]
        for stream in ("stdout", "stderr"):
            yield from _text_and_base64(stream, getattr(self._result, f"{stream}_bytes"))
        yield b"}"


def _text_and_base64(name: str, data: bytes) -> Iterator[bytes]:
    """The fields of `text_and_base64` as parts of a JSON object."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    replaced = False
    yield f',"{name}":"'.encode()
    with memoryview(data) as view:
        for start in range(0, len(data), PIECE_BYTES):
            text = decoder.decode(view[start : start + PIECE_BYTES], final=start + PIECE_BYTES >= len(data))
            replaced = replaced or "\ufffd" in text
            yield msgspec.json.encode(text)[1:-1]
        yield b'"'
        if not replaced or _is_utf8(view):
            return
        yield f',"{name}_base64":"'.encode()
        for start in range(0, len(data), _BASE64_PIECE_BYTES):
            yield binascii.b2a_base64(view[start : start + _BASE64_PIECE_BYTES], newline=False)
        yield b'"'


def _is_utf8(view: memoryview) -> bool:
    """Whether no bytes were lost: the command itself may have written the replacement character."""
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    try:
        for start in range(0, len(view), PIECE_BYTES):
            decoder.decode(view[start : start + PIECE_BYTES], final=start + PIECE_BYTES >= len(view))
    except UnicodeDecodeError:
        return False
    return True
