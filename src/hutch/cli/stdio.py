"""This process's own input, output and terminal, used without ever blocking the event loop.

A full pager or a terminal held with Ctrl-S must not keep a signal from reaching the command. O_NONBLOCK belongs to the
open file, which we share with the shell, so it is never set on an inherited descriptor: a second descriptor is opened
through /proc/self/fd instead.
"""

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

CHUNK = 1 << 16
DEFAULT_TERMINAL_SIZE = (24, 80)


class Sink:
    """Writes pieces to an inherited descriptor, in their order."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        kind = os.fstat(fd).st_mode
        self._may_block = stat.S_ISFIFO(kind) or stat.S_ISCHR(kind) or stat.S_ISSOCK(kind)
        self._nonblocking = _reopened(fd) if self._may_block else None

    async def write(self, data: bytes) -> None:
        if self._nonblocking is not None:
            await self._write_nonblocking(self._nonblocking, memoryview(data))
        elif self._may_block:  # a socket, or a terminal that belongs to another user
            await asyncio.to_thread(_write_all, self._fd, data)
        else:
            _write_all(self._fd, data)

    async def _write_nonblocking(self, fd: int, rest: memoryview) -> None:
        loop = asyncio.get_running_loop()
        while rest:
            try:
                rest = rest[os.write(fd, rest) :]
            except BlockingIOError:
                await _ready(fd, loop.add_writer, loop.remove_writer)

    def close(self) -> None:
        if self._nonblocking is not None:
            os.close(self._nonblocking)
            self._nonblocking = None


async def read_pieces(fd: int) -> AsyncIterator[bytes]:
    """Read a descriptor piece by piece to its end. Nothing is read before it is asked for."""
    loop = asyncio.get_running_loop()
    may_block = True
    while True:
        if may_block:
            try:
                await _ready(fd, loop.add_reader, loop.remove_reader)
            except PermissionError:  # epoll(7) takes no regular file, and no /dev/null: those are always ready
                may_block = False
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:  # another process made the shared open file non-blocking, and read first
            continue
        except OSError:  # EIO: the terminal is gone
            return
        if not data:
            return
        yield data


async def _ready(fd: int, add: Callable[..., object], remove: Callable[[int], object]) -> None:
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    add(fd, _wake, waiter)
    try:
        await waiter
    finally:
        remove(fd)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _reopened(fd: int) -> int | None:
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def terminal_size(fd: int) -> tuple[int, int]:
    """Return (rows, columns); a terminal that does not report it counts as 24 by 80."""
    try:
        columns, rows = os.get_terminal_size(fd)
    except OSError:
        return DEFAULT_TERMINAL_SIZE
    return (rows, columns) if rows and columns else DEFAULT_TERMINAL_SIZE


@contextmanager
def raw_terminal(fd: int) -> Iterator[None]:
    """Send every key to the box, Ctrl-C too, and restore the terminal afterwards, whatever happened."""
    import termios  # two libraries that commands without a terminal do not load
    import tty

    before = termios.tcgetattr(fd)
    try:
        # TCSADRAIN keeps what was typed ahead, and lets earlier output be shown before the mode changes.
        tty.setraw(fd, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
