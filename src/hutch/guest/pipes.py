"""A job's descriptors: output pipes that are read into an Output, and input that is written as the process takes it."""

import errno
import fcntl
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from hutch.guest.loop import READ, WRITE, Loop
from hutch.guest.output import TAIL, Output

PIPE_SIZE = 1 << 20
LAG = TAIL // 2
"""How far a reader who reads along may be behind before the process has to wait for it."""

_scratch = bytearray(1 << 18)
_scratch_view = memoryview(_scratch)


class Pump:
    """Reads one pipe (or terminal) into an output."""

    __slots__ = ("_grown", "_loop", "_progress", "_watching", "fd", "hung", "open", "output", "reader_at")

    def __init__(self, loop: Loop, fd: int, output: Output, progress: Callable[[], None]) -> None:
        self._loop = loop
        self._progress = progress
        self._grown = False
        self.hung = False
        """Nobody holds the terminal any more, but the process may not have ended yet."""
        self._watching = True
        self.fd = fd
        self.open = True
        self.output = output
        self.reader_at: int | None = None
        """Position of the reader who reads along; None: nobody waits, the process never does either."""
        loop.watch(fd, READ, self._ready)

    @property
    def paused(self) -> bool:
        """Waiting for the reader who reads along."""
        return self.open and not self._watching and not self.hung

    def _ready(self, _events: int) -> None:
        self.read_once()
        self._progress()

    def read_once(self) -> bool:
        """One read; False when there is nothing more now, or ever."""
        room = len(_scratch)
        if self.reader_at is not None:
            room = min(room, LAG - (self.output.total - self.reader_at))
            if room <= 0:
                self._pause()
                return False
        try:
            size = os.readv(self.fd, (_scratch_view[:room],))
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
        if size >= 1 << 16 and not self._grown:
            self._grown = True
            _grow(self.fd)
        self.output.append(_scratch_view[:size])
        return True

    def drain(self) -> None:
        """Read until there is nothing more now; after the writer's end that is all it wrote."""
        while self.open and self.read_once():
            continue
        if self.hung:
            self.close()

    def _hang_up(self) -> None:
        """The last holder of a terminal has closed it. Many programs do that just before they exit, and closing our
        end now would end them by SIGHUP instead: it stays open until the process was reaped."""
        self.hung = True
        if self._watching:
            self._watching = False
            self._loop.unwatch(self.fd)

    def resume(self) -> None:
        """The reader has moved on, or is gone."""
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
        self.output.rest()


class Input:
    """Writes to a process's input as fast as it reads; how much waits here is bounded by the senders' credit."""

    __slots__ = ("_ending", "_farewell", "_loop", "_queue", "_watching", "fd", "open")

    def __init__(self, loop: Loop, fd: int, farewell: bytes = b"") -> None:
        self._loop = loop
        self._queue: deque[tuple[memoryview, Callable[[int], None]]] = deque()
        self._ending = False
        self._farewell = farewell
        """What ends the input of a terminal, which nobody can close for the program alone."""
        self._watching = False
        self.fd = fd
        self.open = True

    @property
    def accepting(self) -> bool:
        return self.open and not self._ending

    def write(self, data: bytes, written: Callable[[int], None]) -> None:
        """`written` is told how many bytes were taken, now or later."""
        if not self.accepting:
            written(len(data))
            return
        self._queue.append((memoryview(data), written))
        if not self._watching:
            self._push()

    def end(self) -> None:
        """Close after what waits has been written."""
        if self._farewell and self.accepting:
            self.write(self._farewell, _ignored)
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
            _grow(self.fd)
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


def _grow(fd: int) -> None:
    """Only for a pipe that was seen full: pipe memory is counted against its user, pipe(7)."""
    with suppress(OSError):  # a terminal, or over the user's allowance: the small pipe works as well
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_SIZE)


def _ignored(_size: int) -> None:
    """Nobody granted credit for these bytes."""
