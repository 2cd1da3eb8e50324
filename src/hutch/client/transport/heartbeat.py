"""Watches whether the server is up: one loop sends heartbeats and reconnects without end."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hutch.errors import HutchError
from hutch.logs import log

ConnectionListener = Callable[[bool, str], None]
"""Called with whether the server is up, and the reason if it is not."""


@dataclass(frozen=True, kw_only=True)
class Rhythm:
    """Times of heartbeats, retries and outages."""

    interval_sec: float = 20.0
    answer_timeout_sec: float = 10.0
    """A server that leaves a heartbeat unanswered for this long counts as gone, even if its connection is open."""
    retry_sec: float = 3.0
    """Pause before the second attempt to reconnect. It doubles each time."""
    max_retry_sec: float = 60.0
    outage_timeout_sec: float = 30.0
    """Time for which a repeatable request waits for the server to come back."""
    first_delay_sec: float = 0.5
    """Delay of the first heartbeat. Callers that end before it need none."""

    def pauses(self) -> Iterator[float]:
        """Yield the pause before each attempt to reconnect. The first attempt is immediate."""
        yield 0.0
        pause = self.retry_sec
        while True:
            yield pause
            pause = min(pause * 2, self.max_retry_sec)


class Heartbeat:
    """One task that sends heartbeats while the server answers and reconnects while it does not.

    `beat` sends a request and raises if no answer came. `gone` returns a future that is done when the heartbeat's own
    connection has ended. `dispose` aborts what belongs to the lost connection.
    """

    def __init__(
        self,
        rhythm: Rhythm,
        beat: Callable[[], Awaitable[None]],
        gone: Callable[[], "asyncio.Future[None] | None"],
        dispose: Callable[[], None],
        on_change: ConnectionListener | None = None,
    ) -> None:
        self.rhythm = rhythm
        self._beat = beat
        self._connection_closed = gone
        self._dispose = dispose
        self._on_change = on_change
        self._task: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self._up.set()
        self._beat_wanted = asyncio.Event()
        """Set when a heartbeat is wanted now."""
        self.reason = ""
        """Why the server is down, or empty while it is up."""
        self.interval_sec = rhythm.interval_sec
        """Current interval. Short leases make it shorter."""

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="hutch-lifeline")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def beat_now(self) -> None:
        self._beat_wanted.set()

    def report_failure(self) -> None:
        """Check the server at once, because a request met a broken connection."""
        self._up.clear()
        self._beat_wanted.set()

    async def wait_until_up(self, seconds: float) -> bool:
        """Return whether the server is up or comes back within so many seconds."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._up.wait()
        except TimeoutError:
            return False
        return True

    # --- the loop -------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        await self._next_beat(self.rhythm.first_delay_sec)
        pauses = self.rhythm.pauses()
        while True:
            why = await self._beat_once()
            if not why:
                pauses = self.rhythm.pauses()
                self._set_state("")
                why = await self._next_beat(self.interval_sec)
                if not why:
                    continue
            self._set_state(why)
            self._dispose()
            await asyncio.sleep(next(pauses))

    async def _beat_once(self) -> str:
        """Send one heartbeat. Return why it failed, or an empty text."""
        self._beat_wanted.clear()
        try:
            async with asyncio.timeout(self.rhythm.answer_timeout_sec):
                await self._beat()
        except TimeoutError as error:
            if isinstance(error, HutchError):
                return error.message
            return f"it did not answer for {self.rhythm.answer_timeout_sec:g} s"
        except HutchError as error:
            return error.message
        except Exception as error:  # Whatever it is, the next heartbeat may succeed: this loop never ends.
            log("client").error("a heartbeat failed", error=error)
            return f"{type(error).__name__}: {error}"
        return ""

    async def _next_beat(self, seconds: float) -> str:
        """Wait until a heartbeat is due or wanted. Return a reason if the connection ended meanwhile."""
        gone = self._connection_closed()
        wanted = asyncio.ensure_future(self._beat_wanted.wait())
        waits: set[asyncio.Future[Any]] = {wanted} if gone is None else {wanted, gone}
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            wanted.cancel()
        return "it closed the connection" if gone is not None and gone.done() else ""

    def _set_state(self, why: str) -> None:
        changed = bool(why) != bool(self.reason)
        self.reason = why
        if why:
            self._up.clear()
        else:
            self._up.set()
        if not changed:
            return
        if why:
            log("client").warning("server lost", why=why)
        else:
            log("client").info("server is back")
        if self._on_change is not None:
            try:
                self._on_change(not why, why)
            except Exception as error:  # A failing callback must not end this loop.
                log("client").error("a callback failed", error=error)
