"""Whether the server is there: a heartbeat, and one loop that reconnects for ever (B24)."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hutch.errors import HutchError
from hutch.logs import log

Told = Callable[[bool, str], None]
"""Whether the server is there, and why not."""


@dataclass(frozen=True, kw_only=True)
class Rhythm:
    """How a connection lives."""

    beat_sec: float = 20.0
    silence_sec: float = 10.0
    """A server that leaves a heartbeat unanswered for so long is gone, whatever its connection says."""
    retry_sec: float = 3.0
    """Until the second try to reconnect; then twice as long each time."""
    longest_retry_sec: float = 60.0
    patience_sec: float = 30.0
    """How long a request that may be repeated waits for the server to come back."""
    first_beat_sec: float = 0.5
    """A caller that is gone before that has no need of heartbeats."""

    def pauses(self) -> Iterator[float]:
        """Before each try to reconnect; the first is made at once."""
        yield 0.0
        pause = self.retry_sec
        while True:
            yield pause
            pause = min(pause * 2, self.longest_retry_sec)


class Lifeline:
    """One task beats while the server answers and reconnects while it does not: so there are never two loops.

    `beat` asks the server something and raises if there was no answer at all; `gone` is a future that is done when the
    beat's own connection has ended, cleanly or not; `dispose` throws away what belongs to the lost connection.
    """

    def __init__(
        self,
        rhythm: Rhythm,
        beat: Callable[[], Awaitable[None]],
        gone: Callable[[], "asyncio.Future[None] | None"],
        dispose: Callable[[], None],
        told: Told | None = None,
    ) -> None:
        self.rhythm = rhythm
        self._beat = beat
        self._gone = gone
        self._dispose = dispose
        self._told = told
        self._task: asyncio.Task[None] | None = None
        self._there = asyncio.Event()
        self._there.set()
        self._wanted = asyncio.Event()
        """A beat is wanted now."""
        self.reason = ""
        """Why the server is not there; empty: it is."""
        self.every = rhythm.beat_sec
        """Shorter than usual where leases are."""

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._live(), name="hutch-lifeline")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def beat_now(self) -> None:
        self._wanted.set()

    def suspect(self) -> None:
        """A request met a broken connection: whether the server is gone is found out at once."""
        self._there.clear()
        self._wanted.set()

    async def there(self, seconds: float) -> bool:
        """Whether the server is there, or comes back within so many seconds."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._there.wait()
        except TimeoutError:
            return False
        return True

    # --- the loop -------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        await self._next_beat(self.rhythm.first_beat_sec)
        pauses = self.rhythm.pauses()
        while True:
            why = await self._try()
            if not why:
                pauses = self.rhythm.pauses()
                self._is_there("")
                why = await self._next_beat(self.every)
                if not why:
                    continue
            self._is_there(why)
            self._dispose()
            await asyncio.sleep(next(pauses))

    async def _try(self) -> str:
        """One beat; why it failed, or nothing."""
        self._wanted.clear()
        try:
            async with asyncio.timeout(self.rhythm.silence_sec):
                await self._beat()
        except TimeoutError as error:
            if isinstance(error, HutchError):
                return error.message
            return f"it did not answer for {self.rhythm.silence_sec:g} s"
        except HutchError as error:
            return error.message
        except Exception as error:  # whatever it is, the next beat may be better: this loop never ends
            log("client").error("a heartbeat failed", error=error)
            return f"{type(error).__name__}: {error}"
        return ""

    async def _next_beat(self, seconds: float) -> str:
        """Until a beat is due or wanted; a reason if the connection ended meanwhile."""
        gone = self._gone()
        wanted = asyncio.ensure_future(self._wanted.wait())
        waits: set[asyncio.Future[Any]] = {wanted} if gone is None else {wanted, gone}
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            wanted.cancel()
        return "it closed the connection" if gone is not None and gone.done() else ""

    def _is_there(self, why: str) -> None:
        changed = bool(why) != bool(self.reason)
        self.reason = why
        if why:
            self._there.clear()
        else:
            self._there.set()
        if not changed:
            return
        if why:
            log("client").warning("server lost", why=why)
        else:
            log("client").info("server is back")
        if self._told is not None:
            try:
                self._told(not why, why)
            except Exception as error:  # whoever wants to be told must not end the loop that tells him (lesson 12)
                log("client").error("a callback failed", error=error)
