"""This process's own input and output as bytes, without ever stopping the event loop.

A full pager or a terminal held with Ctrl-S must not keep a signal from reaching the command. O_NONBLOCK belongs to the
open file, which we share with the shell, so it is never set on an inherited descriptor: a twin is opened through
/proc/self/fd instead.
"""

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable

CHUNK = 1 << 16


class Sink:
    """Writes to an inherited descriptor, in order, each piece as it comes."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        kind = os.fstat(fd).st_mode
        self._waits = stat.S_ISFIFO(kind) or stat.S_ISCHR(kind) or stat.S_ISSOCK(kind)
        self._twin = _twin(fd) if self._waits else None

    async def write(self, data: bytes) -> None:
        if self._twin is not None:
            await self._write_twin(self._twin, memoryview(data))
        elif self._waits:  # a socket, or a terminal that belongs to another user
            await asyncio.to_thread(_write_all, self._fd, data)
        else:
            _write_all(self._fd, data)

    async def _write_twin(self, twin: int, rest: memoryview) -> None:
        loop = asyncio.get_running_loop()
        while rest:
            try:
                rest = rest[os.write(twin, rest) :]
            except BlockingIOError:
                await _ready(twin, loop.add_writer, loop.remove_writer)

    def close(self) -> None:
        if self._twin is not None:
            os.close(self._twin)
            self._twin = None


async def pieces(fd: int) -> AsyncIterator[bytes]:
    """What comes in, until its end. Nothing is read before it is asked for."""
    loop = asyncio.get_running_loop()
    waits = True
    while True:
        if waits:
            try:
                await _ready(fd, loop.add_reader, loop.remove_reader)
            except PermissionError:  # epoll(7) takes no regular file, and no /dev/null: those are always ready
                waits = False
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:  # whoever shares the open file has made it non-blocking, and was faster
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


def _twin(fd: int) -> int | None:
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
