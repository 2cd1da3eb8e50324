"""A link over the streams of a process that an engine started for us: raw bytes in, lines of base64 out.

What SDKs give is text and calls, not a socket. Input is queued and sent in order, one call at a time; output comes as
pieces of text that end anywhere.
"""

import asyncio
import binascii
from collections.abc import Awaitable, Callable

from hutch.errors import Unavailable
from hutch.providers.guest_client.queued_transport import QueuedTransport

PIECE = 1 << 20
_LONGEST = 1 << 20
"""The bytes of one line: the relay writes 256 KB at a time, a third more as base64."""


class RelayStream(QueuedTransport):
    """`feed_output` is given the process's output, `feed_stderr` what it says besides, `ended` its end."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]], end: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._end = end
        self._rest = ""
        self.watching: asyncio.Task[None] | None = None
        """The task that waits for the end of the process."""
        self._start_sending(send, PIECE)

    def feed_output(self, text: str) -> None:
        *lines, self._rest = (self._rest + text).split("\n")
        if len(self._rest) > _LONGEST:
            self._broken("the relay in the box does not speak as it should")
            return
        for line in lines:
            try:
                self._feed(memoryview(binascii.a2b_base64(line, strict_mode=True)))
            except binascii.Error:
                # A shell or a template may print something before the relay does.
                self.feed_stderr(line + "\n")
                if self.link.hello:
                    self._broken("the relay in the box does not speak as it should")
                    return

    def _end_process(self) -> None:
        _forgotten(asyncio.ensure_future(self._end()))

    def _broken(self, why: str) -> None:
        self.close()
        self.link.connection_lost(Unavailable(why))


_ending: set[asyncio.Future[None]] = set()
"""Nobody waits for these; the loop itself holds tasks only weakly."""


def _forgotten(task: "asyncio.Future[None]") -> None:
    def done(ended: "asyncio.Future[None]") -> None:
        _ending.discard(ended)
        if not ended.cancelled():
            ended.exception()  # a box that is gone may refuse the last request

    _ending.add(task)
    task.add_done_callback(done)
