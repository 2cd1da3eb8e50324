"""Connects a job's pipes to the SDK's streams, with one JSON message in each line, bounded and with back-pressure.

A read from the pipe may hold a part of a message or several. A line that is no message (many servers print a greeting)
is kept with the output of standard error and never reaches a client.
"""

from collections import deque
from types import TracebackType

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter
from pydantic import ValidationError

from hutch.api import Job
from hutch.errors import HutchError, ServerFailed
from hutch.logs import redact
from hutch.model.mcp import Phase

MAX_LINE = 16 << 20
PREVIEW_LINES = 200
MAX_PREVIEW_LINE = 2000


class OutputPreview:
    """The last lines that a server wrote outside of the protocol, with secrets redacted."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=PREVIEW_LINES)
        self._rest = b""
        self._run_lines = 0
        """Number of lines that belong to this run."""

    def begin_run(self) -> None:
        """Start a new run, so that errors do not quote lines of earlier runs."""
        if self._rest:
            self.line(self._rest.decode("utf-8", "replace"))
        self._rest = b""
        self._run_lines = 0

    def add(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-MAX_PREVIEW_LINE:]
        for line in lines:
            self.line(line.decode("utf-8", "replace"))

    def line(self, text: str) -> None:
        if shown := text.rstrip()[:MAX_PREVIEW_LINE]:
            self._lines.append(redact(shown))
            self._run_lines += 1

    def lines(self) -> tuple[str, ...]:
        rest = self._rest.decode("utf-8", "replace").strip()
        return (*self._lines, *((redact(rest),) if rest else ()))

    def tail(self, count: int = 6) -> str:
        said = self.lines()
        of_this_run = self._run_lines + len(said) - len(self._lines)
        return " | ".join(said[-min(count, of_this_run) :] if of_this_run else ())


class LineStreams:
    """An SDK transport over a job that was started with `follow`."""

    def __init__(self, job: Job, preview: OutputPreview) -> None:
        self._job = job
        self._preview = preview
        self.end_reason: HutchError | None = None
        """Why the stream ended, if not by the end of the server."""
        # Without a buffer, a client that does not read lets the pipe fill. That stops the server and saves our memory.
        self._to_us, self._incoming = _pair()
        self._outgoing, self._from_us = _pair()

    async def __aenter__(self) -> tuple["MemoryObjectReceiveStream[SessionMessage | Exception]", "Sending"]:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._read)
        self._group.start_soon(self._write)
        return self._incoming, self._outgoing

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._group.cancel_scope.cancel()
        await self._group.__aexit__(None, None, None)
        for stream in (self._to_us, self._incoming, self._outgoing, self._from_us):
            stream.close()

    async def _read(self) -> None:
        rest = bytearray()
        async with self._to_us:
            try:
                async for stream, data in self._job.follow():
                    if stream != "stdout":
                        self._preview.add(data)
                        continue
                    rest += data
                    if b"\n" in data:
                        *lines, last = rest.split(b"\n")
                        rest = last
                        for line in lines:
                            await self._handle_line(bytes(line))
                    if len(rest) > MAX_LINE:
                        raise ServerFailed(
                            f"it wrote a line of more than {MAX_LINE >> 20} MB", details={"phase": Phase.RUNTIME}
                        )
            except HutchError as error:  # The box or the framing is lost. The supervisor of the job reports it.
                self.end_reason = error
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return

    async def _handle_line(self, line: bytes) -> None:
        if not line.strip():
            return
        if len(line) > MAX_LINE:
            raise ServerFailed(f"it wrote a line of more than {MAX_LINE >> 20} MB")
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValidationError:
            self._preview.line("(on standard output) " + line[:MAX_PREVIEW_LINE].decode("utf-8", "replace"))
            return
        await self._to_us.send(SessionMessage(message))

    async def _write(self) -> None:
        async with self._from_us:
            async for item in self._from_us:
                assert isinstance(item, SessionMessage)
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                try:
                    await self._job.write(text.encode() + b"\n")
                except HutchError as error:
                    # The server has ended or lost its box. No answer will come, so waiting requests must fail.
                    self.end_reason = error
                    self._to_us.close()
                    return


Sending = MemoryObjectSendStream[SessionMessage]


def _pair() -> tuple[
    "MemoryObjectSendStream[SessionMessage | Exception]", "MemoryObjectReceiveStream[SessionMessage | Exception]"
]:
    return anyio.create_memory_object_stream[SessionMessage | Exception](0)
