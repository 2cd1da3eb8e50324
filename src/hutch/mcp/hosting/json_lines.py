"""One JSON message a line, both ways, between a job's pipes and the SDK's streams: bounded, with back-pressure.

Lesson 36: the pipe's pieces are not the messages. A line that is no message (many servers greet people on standard
output) is kept with what the server wrote to standard error, and never reaches a client.
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

LONGEST_LINE = 16 << 20
PREVIEW_LINES = 200
LONGEST_PREVIEW_LINE = 2000


class Preview:
    """The last lines that a server wrote beside the protocol, without secrets."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=PREVIEW_LINES)
        self._rest = b""
        self._fresh = 0
        """How many of them are of this run."""

    def begin(self) -> None:
        """A new run: an error quotes what that one said, not its predecessors."""
        if self._rest:
            self.line(self._rest.decode("utf-8", "replace"))
        self._rest = b""
        self._fresh = 0

    def add(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-LONGEST_PREVIEW_LINE:]
        for line in lines:
            self.line(line.decode("utf-8", "replace"))

    def line(self, text: str) -> None:
        if shown := text.rstrip()[:LONGEST_PREVIEW_LINE]:
            self._lines.append(redact(shown))
            self._fresh += 1

    def lines(self) -> tuple[str, ...]:
        rest = self._rest.decode("utf-8", "replace").strip()
        return (*self._lines, *((redact(rest),) if rest else ()))

    def tail(self, count: int = 6) -> str:
        said = self.lines()
        fresh = self._fresh + len(said) - len(self._lines)
        return " | ".join(said[-min(count, fresh) :] if fresh else ())


class LineStreams:
    """A transport of the SDK over a job that was started with `follow`."""

    def __init__(self, job: Job, preview: Preview) -> None:
        self._job = job
        self._preview = preview
        self.overflow: HutchError | None = None
        """Why the lines ended, if it was not the server's own end."""
        # No buffer: a client that does not read lets the pipe fill, and that stops the server, not our memory.
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
                            await self._take(bytes(line))
                    if len(rest) > LONGEST_LINE:
                        raise ServerFailed(
                            f"it wrote a line of more than {LONGEST_LINE >> 20} MB", details={"phase": Phase.RUNTIME}
                        )
            except HutchError as error:  # the box has gone, or the framing: whoever watches the job tells
                self.overflow = error
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return

    async def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        if len(line) > LONGEST_LINE:
            raise ServerFailed(f"it wrote a line of more than {LONGEST_LINE >> 20} MB")
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValidationError:
            self._preview.line("(on standard output) " + line[:LONGEST_PREVIEW_LINE].decode("utf-8", "replace"))
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
                    # It has ended, or its box is another's now. No answer will come: whoever waits for one is told.
                    self.overflow = error
                    self._to_us.close()
                    return


Sending = MemoryObjectSendStream[SessionMessage]


def _pair() -> tuple[
    "MemoryObjectSendStream[SessionMessage | Exception]", "MemoryObjectReceiveStream[SessionMessage | Exception]"
]:
    return anyio.create_memory_object_stream[SessionMessage | Exception](0)
