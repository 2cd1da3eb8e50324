"""One epoll loop: descriptors, timers and child signals of the guest, in one thread."""

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

_handling = False

_CROWDED = 256
"""Timers past which the cancelled ones are thrown out: most commands end long before their timeout."""


class Timer:
    """A callback at a time. Cancelling is free: the heap forgets it when its time comes, or when it is crowded."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None

    def __lt__(self, other: Timer) -> bool:
        return self.when < other.when


class Loop:
    """Callbacks by descriptor. A callback must not block: it is everybody's time."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._timers: list[Timer] = []
        self._soon: list[Callable[[], None]] = []
        self._crowded = _CROWDED
        self._stopped = False

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        self._epoll.register(fd, events)
        self._callbacks[fd] = callback

    def change(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        """Before the descriptor is closed: its number may be another file's in the same round."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return self.at(time.monotonic() + seconds, callback)

    def at(self, when: float, callback: Callable[[], None]) -> Timer:
        if len(self._timers) >= self._crowded:
            self._timers = [timer for timer in self._timers if timer.callback is not None]
            heapq.heapify(self._timers)
            self._crowded = max(_CROWDED, 2 * len(self._timers))
        timer = Timer(when, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def soon(self, callback: Callable[[], None]) -> None:
        """In the next round, after descriptors that are ready now: how long work is done in slices."""
        self._soon.append(callback)

    def on_child(self, callback: Callable[[], None]) -> None:
        """Call back whenever a child may have ended."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        _handle_child_signals()
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

        def woken(_events: int) -> None:
            with suppress(BlockingIOError):
                os.read(reader, 4096)
            guarded(callback)

        self.watch(reader, READ, woken)

    def stop(self) -> None:
        self._stopped = True

    def run(self) -> None:
        poll = self._epoll.poll
        callbacks = self._callbacks
        while not self._stopped:
            for fd, events in poll(self._patience(), 64):
                callback = callbacks.get(fd)
                if callback is None:  # an earlier callback of this round closed it
                    continue
                try:
                    callback(events)
                except Exception as error:
                    self.unwatch(fd)
                    _report(error)
            self._run_due()

    def _patience(self) -> float | None:
        if self._soon:
            return 0
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        return max(0.0, self._timers[0].when - time.monotonic())

    def _run_due(self) -> None:
        if self._soon:
            due, self._soon = self._soon, []
            for callback in due:
                guarded(callback)
        if not self._timers:
            return
        now = time.monotonic()
        while self._timers and self._timers[0].when <= now:
            timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                guarded(timer.callback)


def _handle_child_signals() -> None:
    """Only a signal with a handler wakes the descriptor; the work is done by the loop, not in the handler.

    Once: a fork that becomes a guest has it from its parent.
    """
    global _handling
    if not _handling:
        signal.signal(signal.SIGCHLD, _nothing)
        _handling = True


def guarded(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception as error:
        _report(error)


def _report(error: Exception) -> None:
    """A defect costs the descriptor or timer it happened on. The guest is PID 1: if it ended, the box would."""
    os.write(2, f"guest: {type(error).__name__}: {error}\n".encode(errors="replace"))


def _nothing(_number: int, _frame: object) -> None:
    """A handler must exist for the signal to be delivered at all."""
