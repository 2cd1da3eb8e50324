"""Kernels over HTTP: code is answered when it ends, or streamed. A client that leaves interrupts its code."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, ClassVar

import msgspec

from hutch.errors import HutchError
from hutch.keeper.access.code import KernelsHandle
from hutch.model.code import CodeError, CodePiece, CodeResult, Display, KernelInfo
from hutch.model.record import Record, encode_json
from hutch.server.access import find, observing, using
from hutch.server.error_status import error_to_wire
from hutch.server.handlers.box.commands import KeptBytes, Seconds
from hutch.server.request import NDJSON, Call, Reply
from hutch.server.wire import PIECE_BYTES, Error

Language = Annotated[str, msgspec.Meta(max_length=40)]
KernelId = Annotated[str, msgspec.Meta(max_length=80)]


class CodeBody(Record, frozen=True, kw_only=True):
    """Code of a language, for its default kernel or for the kernel named here."""

    odd_names: ClassVar[bool] = True

    code: str
    language: Language = ""
    """python, javascript, typescript or bash; may be left out if `kernel` is given, else python."""
    kernel: KernelId = ""
    env: dict[str, str] = msgspec.field(default_factory=dict)
    """Variables of the environment for this run only."""
    timeout: Seconds | None = None
    keep_output: KeptBytes = 1 << 20
    """Characters of each stream in the result."""

    def arguments(self) -> dict[str, Any]:
        language = self.language or ("" if self.kernel else "python")
        return {
            "language": language, "code": self.code, "timeout": self.timeout, "env": self.env, "kernel": self.kernel,
            "keep_output": self.keep_output,
        }  # fmt: skip


class KernelBody(Record, frozen=True, kw_only=True):
    """A new kernel."""

    language: Language = "python"
    cwd: str | None = None
    env: dict[str, str] = msgspec.field(default_factory=dict)


class KernelList(Record, frozen=True, kw_only=True):
    kernels: tuple[KernelInfo, ...]


class CodeLine(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a run: printed text, a display, the code's own error, and at the end the result or a failure."""

    stream: str = ""
    """stdout or stderr, with `text`."""
    text: str = ""
    display: Display | None = None
    error: CodeError | None = None
    result: CodeResult | None = None
    """The last line; it repeats no printed text and no display."""
    failed: Error | None = None
    """Instead of a result: why the run could not go on."""


async def list_kernels(call: Call) -> Reply:
    """List the box's kernels, oldest first."""
    live = await find(call)
    async with observing(call) as guard:
        keeper = call.keeper
        handle = KernelsHandle(guard, live, keeper.engines.templates, keeper.states.announce)
        return Reply(KernelList(kernels=await handle.all()).to_json())


async def start(call: Call, body: KernelBody) -> Reply:
    """Start another kernel."""
    async with using(call) as box:
        info = await box.kernels.start(body.language, cwd=body.cwd, env=body.env)
    return Reply(info.to_json(), status=201)


async def run(call: Call, body: CodeBody) -> Reply:
    """Run code to its end. Accept: application/x-ndjson streams what it prints and shows."""
    if call.accepts(NDJSON):
        return Reply(_stream(call, body), type=NDJSON)
    return await call.service.operations.run_once(call, _run(call, body))


async def _run(call: Call, body: CodeBody) -> Reply:
    result: CodeResult | None = None
    async with using(call) as box:
        pieces = box.kernels.stream(**body.arguments())
        async with aclosing(pieces):
            async for piece in pieces:
                result = piece.result or result
                # The pieces of a result are held here until it is sent, and count as the caller's.
                if piece.display is not None and call.account is not None:
                    call.account.take(sum(map(len, piece.display.data.values())))
    assert result is not None
    return Reply(encode_json(result))


async def _stream(call: Call, body: CodeBody) -> AsyncGenerator[bytes, None]:
    started = False
    async with using(call) as box:
        pieces = box.kernels.stream(**body.arguments())
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    started = True
                    for line in _lines(piece):
                        yield line
        except HutchError as error:
            if not started:  # The error still gets its own status.
                raise
            yield encode_json({"failed": error_to_wire(error, "code")}) + b"\n"


def _lines(piece: CodePiece) -> list[bytes]:
    if piece.result is not None:
        bare = piece.result.but(stdout="", stderr="", displays=())
        return [encode_json(CodeLine(result=bare)) + b"\n"]
    if piece.text:
        texts = (piece.text[at : at + PIECE_BYTES] for at in range(0, len(piece.text), PIECE_BYTES))
        return [encode_json(CodeLine(stream=piece.stream, text=text)) + b"\n" for text in texts]
    return [encode_json(CodeLine(display=piece.display, error=piece.error)) + b"\n"]


async def interrupt(call: Call) -> Reply:
    """Interrupt what runs in a kernel; its state stays."""
    async with using(call) as box:
        await box.kernels.interrupt(call.params["kernel"])
    return Reply(status=204)


async def restart(call: Call) -> Reply:
    """Start a kernel again under its name, with empty state."""
    async with using(call) as box:
        return Reply((await box.kernels.restart(call.params["kernel"])).to_json())


async def remove(call: Call) -> Reply:
    """End a kernel."""
    async with using(call) as box:
        await box.kernels.remove(call.params["kernel"])
    return Reply(status=204)
