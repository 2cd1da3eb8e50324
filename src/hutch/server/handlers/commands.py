"""Commands over HTTP: run to the end and answered once, or read while they run. Whoever leaves kills his command."""

import codecs
import struct
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Annotated, Any, ClassVar, Protocol, cast

import msgspec

from hutch.errors import HutchError, Invalid
from hutch.model.record import Record, encoded
from hutch.model.results import Result
from hutch.server.access import using
from hutch.server.error_status import wire_of
from hutch.server.request import BYTES, NDJSON, Call, Reply
from hutch.server.views import SMALL, WrittenResult, result_view, without_output

FRAME = struct.Struct(">BI")
"""A frame of the octet-stream form: kind, length of what follows."""
STDOUT, STDERR, RESULT, ERROR = 1, 2, 3, 4

Seconds = Annotated[float, msgspec.Meta(ge=0, le=31_536_000)]
KeptBytes = Annotated[int, msgspec.Meta(ge=0, le=64 << 20)]


class ExecBody(Record, frozen=True, kw_only=True):
    """A string runs under a shell, a list is argv."""

    odd_names: ClassVar[bool] = True

    command: str | tuple[str, ...]
    cwd: str | None = None
    env: dict[str, str] = msgspec.field(default_factory=dict)
    stdin: str | None = None
    stdin_base64: bytes | None = None
    timeout: Seconds | None = None
    user: str | None = None
    keep_output: KeptBytes = 1 << 20
    """Bytes of each stream in the answer; the rest is read by cursor from the job."""

    def options(self) -> dict[str, Any]:
        if self.stdin is not None and self.stdin_base64 is not None:
            raise Invalid("give stdin or stdin_base64, not both", op="exec")
        stdin = self.stdin_base64 if self.stdin is None else self.stdin
        return {"cwd": self.cwd, "env": self.env, "stdin": stdin, "timeout": self.timeout, "user": self.user}


async def execute(call: Call, body: ExecBody) -> Reply:
    """Run a command to its end. Accept: application/x-ndjson or application/octet-stream for its output as it comes."""
    if call.accepts(NDJSON):
        return Reply(_streamed(call, body, Lines()), type=NDJSON)
    if call.accepts(BYTES):
        return Reply(_streamed(call, body, Frames()), type=BYTES)
    return await call.service.operations.do(call, _executed(call, body))


async def _executed(call: Call, body: ExecBody) -> Reply:
    keep, notes = _kept(call, body.keep_output)
    async with using(call) as box:
        result = await box.exec(body.command, **body.options(), keep_output=keep)
    if notes:
        result = result.but(notes=(*notes, *result.notes))
    if len(result.stdout_bytes) + len(result.stderr_bytes) > SMALL:
        return Reply(WrittenResult(result))
    return Reply(encoded(result_view(result)))


def _kept(call: Call, asked: int) -> tuple[int, tuple[str, ...]]:
    """Bytes of each stream that the answer may have, and what the caller should know of that."""
    most = call.service.budget.largest // 2
    if asked <= most:
        return asked, ()
    return most, (f"keep_output {asked} was cut to {most}: this server holds no more for one answer",)


async def cancel(call: Call) -> Reply:
    """Nobody waits any more for what a request with this Hutch-Operation began: it is killed, if it still runs."""
    await call.service.operations.cancel(call, call.params["operation"])
    return Reply(status=204)


class Form(Protocol):
    """How a stream is written down."""

    def piece(self, stream: str, data: bytes) -> bytes: ...

    def end(self, result: Result) -> bytes: ...

    def error(self, error: HutchError) -> bytes: ...


class Lines:
    """`{"stream": …, "text": …}` for people and scripts, at the end `{"result": …}` or `{"error": …}`."""

    def __init__(self) -> None:
        # Pieces end anywhere, also inside a character.
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}

    def piece(self, stream: str, data: bytes) -> bytes:
        text = self._decoders[stream].decode(data)
        return _line({"stream": stream, "text": text}) if text else b""

    def end(self, result: Result) -> bytes:
        rests = ((name, decoder.decode(b"", final=True)) for name, decoder in self._decoders.items())
        last = b"".join(_line({"stream": name, "text": rest}) for name, rest in rests if rest)
        return last + _line({"result": _without_output(result)})

    def error(self, error: HutchError) -> bytes:
        return _line({"error": wire_of(error, "exec")})


class Frames:
    """Every byte as it was written: kind and length, then that many bytes; the last frame is the result."""

    def piece(self, stream: str, data: bytes) -> bytes:
        return framed(STDOUT if stream == "stdout" else STDERR, data)

    def end(self, result: Result) -> bytes:
        return self._json(RESULT, _without_output(result))

    def error(self, error: HutchError) -> bytes:
        return self._json(ERROR, wire_of(error, "exec"))

    def _json(self, kind: int, value: Mapping[str, Any]) -> bytes:
        return framed(kind, msgspec.json.encode(value))


def framed(kind: int, data: bytes) -> bytes:
    return FRAME.pack(kind, len(data)) + data


async def _streamed(call: Call, body: ExecBody, form: Form) -> AsyncGenerator[bytes, None]:
    begun = False
    async with using(call) as box:
        stream = box.stream(body.command, **body.options())
        # Closed by name: a generator that is merely dropped would kill the command only when it is collected.
        pieces = cast(AsyncGenerator[tuple[str, bytes], None], aiter(stream))
        try:
            async with aclosing(pieces):
                async for name, data in pieces:
                    begun = True
                    yield form.piece(name, data)
            yield form.end(stream.result)
        except HutchError as error:
            if not begun:  # it can still be told by the status
                raise
            yield form.error(error)


def _without_output(result: Result) -> dict[str, Any]:
    return {**without_output(result), "stdout": "", "stderr": ""}


def _line(value: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(value) + b"\n"
