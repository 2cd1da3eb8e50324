"""A job's pipes: output is read into an Output, and input is written as fast as the process reads it."""

import errno
import fcntl
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from hutch.guest.loop import READ, WRITE, Loop
from hutch.guest.output import TAIL, Output

PIPE_SIZE = 1 << 20
MAX_LAG = TAIL // 2
"""How far a live reader may be behind before the process has to wait for it."""

_scratch = bytearray(1 << 18)
_scratch_view = memoryview(_scratch)


class Pump:
    """Reads one pipe (or terminal) into an output."""

    __slots__ = ("_enlarged", "_loop", "_on_progress", "_watching", "fd", "hung_up", "open", "output", "reader_at")

    def __init__(self, loop: Loop, fd: int, output: Output, on_progress: Callable[[], None]) -> None:
        self._loop = loop
        self._on_progress = on_progress
        self._enlarged = False
        self.hung_up = False
        """Whether nobody holds the terminal any more; the process may still be running."""
        self._watching = True
        self.fd = fd
        self.open = True
        self.output = output
        self.reader_at: int | None = None
        """Position of the live reader; None if there is none, and then the process never waits."""
        loop.watch(fd, READ, self._ready)

    @property
    def paused(self) -> bool:
        """Whether reading is paused for the live reader."""
        return self.open and not self._watching and not self.hung_up

    def _ready(self, _events: int) -> None:
        self.read_once()
        self._on_progress()

    def read_once(self) -> bool:
        """Read once; return False when nothing more is available, now or ever."""
        limit = len(_scratch)
        if self.reader_at is not None:
            limit = min(limit, MAX_LAG - (self.output.total - self.reader_at))
            if limit <= 0:
                self._pause()
                return False
        try:
            size = os.readv(self.fd, (_scratch_view[:limit],))
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.EINTR:
                return True
            if error.errno == errno.EIO:
                self._hang_up()
                return False
            size = 0
        if size == 0:
            self.close()
            return False
        if size >= 1 << 16 and not self._enlarged:
            self._enlarged = True
            _enlarge_pipe(self.fd)
        self.output.append(_scratch_view[:size])
        return True

    def drain(self) -> None:
        """Read all that is available; after the writer's end that is everything it wrote."""
        while self.open and self.read_once():
            continue
        if self.hung_up:
            self.close()

    def _hang_up(self) -> None:
        """Stop reading, but keep the terminal open until the process is reaped: many programs close it just before they
        exit, and closing our end now would kill them by SIGHUP."""
        self.hung_up = True
        if self._watching:
            self._watching = False
            self._loop.unwatch(self.fd)

    def resume(self) -> None:
        """Continue reading; the live reader has advanced or is gone."""
        if self.paused:
            self._watching = True
            self._loop.watch(self.fd, READ, self._ready)

    def _pause(self) -> None:
        if self._watching:
            self._watching = False
            self._loop.unwatch(self.fd)

    def close(self) -> None:
        if not self.open:
            return
        self.open = False
        if self._watching:
            self._loop.unwatch(self.fd)
        os.close(self.fd)
        self.output.close_file()


class Input:
    """Writes to a process's input as fast as it reads; the senders' credit bounds what is queued."""

    __slots__ = ("_end_bytes", "_ending", "_loop", "_queue", "_watching", "fd", "open")

    def __init__(self, loop: Loop, fd: int, end_bytes: bytes = b"") -> None:
        self._loop = loop
        self._queue: deque[tuple[memoryview, Callable[[int], None]]] = deque()
        self._ending = False
        self._end_bytes = end_bytes
        """Sent to end the input of a terminal, which cannot be closed in one direction only."""
        self._watching = False
        self.fd = fd
        self.open = True

    @property
    def accepting(self) -> bool:
        return self.open and not self._ending

    def write(self, data: bytes, written: Callable[[int], None]) -> None:
        """Queue data; `written` is called with the number of bytes written, now or later."""
        if not self.accepting:
            written(len(data))
            return
        self._queue.append((memoryview(data), written))
        if not self._watching:
            self._push()

    def end(self) -> None:
        """Close once everything queued has been written."""
        if self._end_bytes and self.accepting:
            self.write(self._end_bytes, _no_credit)
        self._ending = True
        if not self._queue:
            self.close()

    def _ready(self, _events: int) -> None:
        self._push()

    def _push(self) -> None:
        while self._queue:
            data, written = self._queue[0]
            try:
                size = os.write(self.fd, data)
            except BlockingIOError:
                self._wait()
                return
            except OSError:  # EPIPE: nobody reads it any more; EIO: the terminal is gone
                self.close()
                return
            if size == len(data):
                self._queue.popleft()
            else:
                self._queue[0] = (data[size:], written)
            written(size)
        if self._ending:
            self.close()
        elif self._watching:
            self._watching = False
            self._loop.unwatch(self.fd)

    def _wait(self) -> None:
        if not self._watching:
            self._watching = True
            _enlarge_pipe(self.fd)
            self._loop.watch(self.fd, WRITE, self._ready)

    def close(self) -> None:
        if not self.open:
            return
        self.open = False
        if self._watching:
            self._loop.unwatch(self.fd)
        os.close(self.fd)
        queue, self._queue = self._queue, deque()
        for data, written in queue:
            written(len(data))


def _enlarge_pipe(fd: int) -> None:
    """Enlarge a pipe that was seen full; not every pipe, because pipe memory counts against its user, pipe(7)."""
    with suppress(OSError):  # a terminal, or the user's limit is reached: the small pipe works too
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_SIZE)


def _no_credit(_size: int) -> None:
    """Ignore the count; nobody granted credit for these bytes."""
