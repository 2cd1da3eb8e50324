"""A link over the streams of a process that an engine started for us: raw bytes in, lines of base64 out.

What SDKs give is text and calls, not a socket. Input is queued and sent in order, one call at a time; output comes as
pieces of text that end anywhere.
"""

import asyncio
import binascii
from collections.abc import Awaitable, Callable
from typing import Any

from hutch.errors import HutchError, Unavailable
from hutch.providers.guest_client.link import Link

HIGH, LOW = 4 << 20, 1 << 20
PIECE = 1 << 20
_LONGEST = 1 << 20
"""Of a line: the relay writes 256 KB at a time, a third more as base64."""
_KEPT = 2000


class RelayStream(asyncio.Transport):
    """`feed_output` is given the process's output, `feed_stderr` what it says besides, `ended` its end."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]], end: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self.link = Link()
        self.stderr = ""
        self._send = send
        self._end = end
        self._rest = ""
        self._waiting = bytearray()
        self._more = asyncio.Event()
        self._closing = False
        self._paused = False
        self.watching: asyncio.Task[None] | None = None
        """The task that waits for the end of the process."""
        self.link.connection_made(self)
        self._writer = asyncio.create_task(self._write_out())

    # --- what the engine calls -------------------------------------------------------------------------------

    def feed_output(self, text: str) -> None:
        *lines, self._rest = (self._rest + text).split("\n")
        if len(self._rest) > _LONGEST:
            self._broken("the relay in the box does not speak as it should")
            return
        for line in lines:
            try:
                self._feed(memoryview(binascii.a2b_base64(line, strict_mode=True)))
            except binascii.Error:
                # A shell or a template may greet before the relay speaks.
                self.stderr = (self.stderr + line + "\n")[-_KEPT:]
                if self.link.hello:
                    self._broken("the relay in the box does not speak as it should")
                    return

    def feed_stderr(self, text: str) -> None:
        self.stderr = (self.stderr + text)[-_KEPT:]

    def ended(self, error: Exception | None = None) -> None:
        if not self._closing:
            self._stop()
            self.link.connection_lost(error)

    # --- what the link calls ---------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        self._waiting += data
        self._more.set()
        if len(self._waiting) > HIGH and not self._paused:
            self._paused = True
            self.link.pause_writing()

    def abort(self) -> None:
        self.close()

    def close(self) -> None:
        if not self._closing:
            self._stop()
            _forgotten(asyncio.ensure_future(self._end()))

    def is_closing(self) -> bool:
        return self._closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    # --- inside ----------------------------------------------------------------------------------------------

    async def _write_out(self) -> None:
        try:
            while True:
                await self._more.wait()
                data = bytes(self._waiting[:PIECE])
                del self._waiting[:PIECE]
                if not self._waiting:
                    self._more.clear()
                await self._send(data)
                if self._paused and len(self._waiting) < LOW:
                    self._paused = False
                    self.link.resume_writing()
        except HutchError as error:
            self.ended(error)

    def _feed(self, piece: memoryview) -> None:
        while piece and self.link.usable:
            room = self.link.get_buffer(len(piece))
            size = min(len(room), len(piece))
            room[:size] = piece[:size]
            self.link.buffer_updated(size)
            piece = piece[size:]

    def _broken(self, why: str) -> None:
        self.close()
        self.link.connection_lost(Unavailable(why))

    def _stop(self) -> None:
        self._closing = True
        if asyncio.current_task() is not self._writer:
            self._writer.cancel()


_ending: set[asyncio.Future[None]] = set()
"""Nobody waits for these; the loop itself holds tasks only weakly."""


def _forgotten(task: "asyncio.Future[None]") -> None:
    def done(ended: "asyncio.Future[None]") -> None:
        _ending.discard(ended)
        if not ended.cancelled():
            ended.exception()  # a box that is gone may refuse the last request

    _ending.add(task)
    task.add_done_callback(done)
