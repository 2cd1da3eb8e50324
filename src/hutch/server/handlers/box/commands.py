"""Commands over HTTP: answered when they end, or streamed while they run. A client that leaves kills its command."""

import codecs
import struct
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Annotated, Any, ClassVar, Protocol, cast

import msgspec

from hutch.errors import HutchError, Invalid
from hutch.model.record import Record, encode_json
from hutch.model.results import Result
from hutch.server.access import using
from hutch.server.error_status import error_to_wire
from hutch.server.request import BYTES, NDJSON, Call, Reply
from hutch.server.wire import PIECE_BYTES, StreamedResult, result_to_wire, without_output

FRAME = struct.Struct(">BI")
"""The header of a frame in the octet-stream format: kind, and length of the payload."""
STDOUT, STDERR, RESULT, ERROR = 1, 2, 3, 4

Seconds = Annotated[float, msgspec.Meta(ge=0, le=31_536_000)]
KeptBytes = Annotated[int, msgspec.Meta(ge=0, le=64 << 20)]


class ExecBody(Record, frozen=True, kw_only=True):
    """A command: a string runs in a shell, a list is an argument vector."""

    odd_names: ClassVar[bool] = True

    command: str | tuple[str, ...]
    cwd: str | None = None
    env: dict[str, str] = msgspec.field(default_factory=dict)
    stdin: str | None = None
    stdin_base64: bytes | None = None
    timeout: Seconds | None = None
    user: str | None = None
    keep_output: KeptBytes = 1 << 20
    """Bytes of each stream in the answer; the rest can be read from the job by cursor."""

    def options(self) -> dict[str, Any]:
        if self.stdin is not None and self.stdin_base64 is not None:
            raise Invalid("give stdin or stdin_base64, not both", op="exec")
        stdin = self.stdin_base64 if self.stdin is None else self.stdin
        return {"cwd": self.cwd, "env": self.env, "stdin": stdin, "timeout": self.timeout, "user": self.user}


async def execute(call: Call, body: ExecBody) -> Reply:
    """Run a command to its end. Accept: application/x-ndjson or application/octet-stream streams its output."""
    if call.accepts(NDJSON):
        return Reply(_stream(call, body, Lines()), type=NDJSON)
    if call.accepts(BYTES):
        return Reply(_stream(call, body, Frames()), type=BYTES)
    return await call.service.operations.run_once(call, _execute(call, body))


async def _execute(call: Call, body: ExecBody) -> Reply:
    keep, notes = _output_limit(call, body.keep_output)
    async with using(call) as box:
        result = await box.exec(body.command, **body.options(), keep_output=keep)
    if notes:
        result = result.but(notes=(*notes, *result.notes))
    if len(result.stdout_bytes) + len(result.stderr_bytes) > PIECE_BYTES:
        return Reply(StreamedResult(result))
    return Reply(encode_json(result_to_wire(result)))


def _output_limit(call: Call, requested: int) -> tuple[int, tuple[str, ...]]:
    """The number of bytes of each stream in the answer, and a note if that is less than requested."""
    maximum = call.service.budget.largest // 2
    if requested <= maximum:
        return requested, ()
    return maximum, (f"keep_output {requested} was cut to {maximum}: this server holds no more for one answer",)


async def cancel(call: Call) -> Reply:
    """Cancel the command that a request with this Hutch-Operation started, if it still runs."""
    await call.service.operations.cancel(call, call.params["operation"])
    return Reply(status=204)


class StreamFormat(Protocol):
    """The encoding of a command's stream."""

    def piece(self, stream: str, data: bytes) -> bytes: ...

    def end(self, result: Result) -> bytes: ...

    def error(self, error: HutchError) -> bytes: ...


class Lines:
    """Lines of JSON: `{"stream": …, "text": …}`, and at the end `{"result": …}` or `{"error": …}`."""

    def __init__(self) -> None:
        # A piece may end inside a character.
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}

    def piece(self, stream: str, data: bytes) -> bytes:
        text = self._decoders[stream].decode(data)
        return _line({"stream": stream, "text": text}) if text else b""

    def end(self, result: Result) -> bytes:
        rests = ((name, decoder.decode(b"", final=True)) for name, decoder in self._decoders.items())
        last = b"".join(_line({"stream": name, "text": rest}) for name, rest in rests if rest)
        return last + _line({"result": _without_output(result)})

    def error(self, error: HutchError) -> bytes:
        return _line({"error": error_to_wire(error, "exec")})


class Frames:
    """Binary frames with every byte as it was written; the last frame is the result or the error."""

    def piece(self, stream: str, data: bytes) -> bytes:
        return frame(STDOUT if stream == "stdout" else STDERR, data)

    def end(self, result: Result) -> bytes:
        return self._json(RESULT, _without_output(result))

    def error(self, error: HutchError) -> bytes:
        return self._json(ERROR, error_to_wire(error, "exec"))

    def _json(self, kind: int, value: Mapping[str, Any]) -> bytes:
        return frame(kind, msgspec.json.encode(value))


def frame(kind: int, data: bytes) -> bytes:
    return FRAME.pack(kind, len(data)) + data


async def _stream(call: Call, body: ExecBody, format: StreamFormat) -> AsyncGenerator[bytes, None]:
    started = False
    async with using(call) as box:
        stream = box.stream(body.command, **body.options())
        # Closed explicitly: a dropped generator would kill the command only when it is garbage-collected.
        pieces = cast(AsyncGenerator[tuple[str, bytes], None], aiter(stream))
        try:
            async with aclosing(pieces):
                async for name, data in pieces:
                    started = True
                    yield format.piece(name, data)
            yield format.end(stream.result)
        except HutchError as error:
            if not started:  # The error still gets its own status.
                raise
            yield format.error(error)


def _without_output(result: Result) -> dict[str, Any]:
    return {**without_output(result), "stdout": "", "stderr": ""}


def _line(value: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(value) + b"\n"
