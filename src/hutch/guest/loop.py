"""The guest's event loop: descriptors by epoll, timers and child signals, in one thread."""

from __future__ import annotations

import heapq
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress

READ = select.EPOLLIN
WRITE = select.EPOLLOUT

_child_signals_handled = False

_COMPACT_TIMERS = 256
"""Number of timers at which cancelled ones are removed: most commands end long before their timeout."""


class Timer:
    """A callback at a point in time. A cancelled timer stays in the heap until it is due or the heap is compacted."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None

    def __lt__(self, other: Timer) -> bool:
        return self.when < other.when


class Loop:
    """Calls back when descriptors are ready. A callback must not block, because it would block the whole guest."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._timers: list[Timer] = []
        self._callbacks_due: list[Callable[[], None]] = []
        self._compact_at = _COMPACT_TIMERS
        self._stopped = False

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        self._epoll.register(fd, events)
        self._callbacks[fd] = callback

    def change(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        """Must be called before the descriptor is closed: another file may get its number in the same round."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return self.call_at(time.monotonic() + seconds, callback)

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        if len(self._timers) >= self._compact_at:
            self._timers = [timer for timer in self._timers if timer.callback is not None]
            heapq.heapify(self._timers)
            self._compact_at = max(_COMPACT_TIMERS, 2 * len(self._timers))
        timer = Timer(when, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back in the next round, after descriptors that are ready now, so that long work can run in slices."""
        self._callbacks_due.append(callback)

    def on_child(self, callback: Callable[[], None]) -> None:
        """Call back whenever a child may have ended."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        _handle_child_signals()
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

        def woken(_events: int) -> None:
            with suppress(BlockingIOError):
                os.read(reader, 4096)
            run_guarded(callback)

        self.watch(reader, READ, woken)

    def stop(self) -> None:
        self._stopped = True

    def run(self) -> None:
        poll = self._epoll.poll
        callbacks = self._callbacks
        while not self._stopped:
            for fd, events in poll(self._poll_timeout(), 64):
                callback = callbacks.get(fd)
                if callback is None:  # an earlier callback of this round closed it
                    continue
                try:
                    callback(events)
                except Exception as error:
                    self.unwatch(fd)
                    _report(error)
            self._run_due()

    def _poll_timeout(self) -> float | None:
        if self._callbacks_due:
            return 0
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        return max(0.0, self._timers[0].when - time.monotonic())

    def _run_due(self) -> None:
        if self._callbacks_due:
            due, self._callbacks_due = self._callbacks_due, []
            for callback in due:
                run_guarded(callback)
        if not self._timers:
            return
        now = time.monotonic()
        while self._timers and self._timers[0].when <= now:
            timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                run_guarded(timer.callback)


def _handle_child_signals() -> None:
    """Install a SIGCHLD handler: only a signal with a handler wakes the descriptor, and the loop does the work.

    A forked guest inherits the handler from its parent, so this happens once.
    """
    global _child_signals_handled
    if not _child_signals_handled:
        signal.signal(signal.SIGCHLD, _on_child_signal)
        _child_signals_handled = True


def run_guarded(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception as error:
        _report(error)


def _report(error: Exception) -> None:
    """Report a defect, which costs only its descriptor or timer: if PID 1 exited, the box would end."""
    os.write(2, f"guest: {type(error).__name__}: {error}\n".encode(errors="replace"))


def _on_child_signal(_number: int, _frame: object) -> None:
    """Do nothing; the signal is delivered only if it has a handler."""
