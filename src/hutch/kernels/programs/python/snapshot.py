"""A kernel that is forked alive: it forks itself, and the copy waits until its memory is another box's kernel.

The copy wakes up in a process that has its memory and nothing else of it. Whatever the operating system keeps for a
process is made again here: open files, working directory, handlers of signals, threads, and random numbers.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import signal
import stat
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from .channel import Capture, Channel

if TYPE_CHECKING:
    import asyncio

_PARKED_SECONDS = 120.0
"""How long a copy waits for somebody to take its memory."""
_OWN_THREADS = 2  # The main one, and the one that sends output.
_KEPT_FLAGS = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | os.O_DIRECTORY | os.O_CLOEXEC


class _File(NamedTuple):
    """An open file, as the copy opens it again."""

    path: str
    """Empty if only the process that opened it can have it: a socket, a pipe, or a file that has no name any more."""
    flags: int
    position: int


class _State(NamedTuple):
    """What the operating system keeps for the kernel's process."""

    files: dict[int, _File]
    directory: str
    mask: int
    lost_threads: int


def fork(run: str, channel: Channel, capture: Capture, loop: asyncio.AbstractEventLoop | None) -> bool:
    """Fork the kernel; return True in the copy, once it is a kernel of its own in another box.

    The kernel itself reports the copy's pid, and then waits for its end. `loop` is its event loop, which a copy closes.
    """
    lost_threads = len(os.listdir("/proc/self/task")) - _OWN_THREADS
    capture.drain()
    reader, writer = os.pipe()
    try:
        with capture.lock, channel.lock:  # Another thread would hold them for ever in the copy.
            child = os.fork()
    except OSError as error:
        os.close(reader)
        os.close(writer)
        channel.send(type="done", run=run, error={"name": "OSError", "value": str(error), "traceback": str(error)})
        return False
    if child == 0:
        _be_copied(reader, writer, lost_threads, channel, capture, loop)
        return True
    os.close(writer)
    if os.read(reader, 1):
        channel.send(type="forked", run=run, pid=child)
    os.close(reader)
    with suppress(ChildProcessError):  # The code has a handler of its own for the ends of children.
        os.waitpid(child, 0)
    channel.send(type="done", run=run)
    return False


def _be_copied(
    reader: int, writer: int, lost_threads: int, channel: Channel, capture: Capture,
    loop: asyncio.AbstractEventLoop | None,
) -> None:  # fmt: skip
    """Wait, and return as the kernel of another box."""
    try:
        own = {0, 1, 2, reader, writer, *channel.descriptors, *capture.descriptors}
        state = _State(_files(own), _directory(), os.umask(0o022), lost_threads)
        silent, _ = os.pipe()
        os.dup2(silent, 0)  # Nobody writes to it here; in the other box this number is the new kernel's input.
        os.write(writer, b"1")
        if not _is_woken():
            os._exit(0)
        _wake(state, channel, capture, loop)
    except BaseException:
        os._exit(1)


def _is_woken() -> bool:
    """Whether a line arrives at the standard input in time."""
    deadline = time.monotonic() + _PARKED_SECONDS
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([0], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        piece = os.read(0, 1)
        if not piece:
            return False
        line += piece
    return True


def _wake(state: _State, channel: Channel, capture: Capture, loop: asyncio.AbstractEventLoop | None) -> None:
    channel.move()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    notes = _reopen(state.files, _descriptors(loop))
    if loop is not None:
        loop.close()  # A new one is made when it is needed.
    if state.lost_threads > 0:
        notes.append(f"{state.lost_threads} threads of the kernel were not forked with it")
    with suppress(OSError):  # It was removed, as the files that the fork was made from show.
        os.chdir(state.directory)
    os.umask(state.mask)
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        with suppress(OSError, ValueError):  # SIGKILL and SIGSTOP have none.
            if handler is not None:
                signal.signal(number, handler)
    if "HOSTNAME" in os.environ:
        os.environ["HOSTNAME"] = os.uname().nodename
    with suppress(AttributeError):
        threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
    reseed()
    capture.reopen()
    capture.start()
    channel.send(type="ready", version="{}.{}.{}".format(*sys.version_info[:3]), notes=notes)


def _descriptors(loop: Any) -> set[int]:
    """What an event loop of asyncio has open for itself."""
    parts = [getattr(loop, name, None) for name in ("_selector", "_ssock", "_csock")]
    return {part.fileno() for part in parts if part is not None}


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"


def _files(own: set[int]) -> dict[int, _File]:
    """Describe the open files that belong to the code."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        with suppress(OSError):  # The descriptor of the listing itself is closed again.
            if number not in own:
                found[number] = _described(number)
    return found


def _described(number: int) -> _File:
    opened = os.fstat(number)
    flags = fcntl.fcntl(number, fcntl.F_GETFL) & _KEPT_FLAGS
    if not os.get_inheritable(number):
        flags |= os.O_CLOEXEC
    path = os.readlink(f"/proc/self/fd/{number}")
    if not stat.S_ISREG(opened.st_mode) and not stat.S_ISDIR(opened.st_mode) and not stat.S_ISCHR(opened.st_mode):
        return _File("", flags, 0)
    try:
        named = os.stat(path)
    except OSError:
        return _File("", flags, 0)
    if (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino):
        return _File("", flags, 0)
    return _File(path, flags, os.lseek(number, 0, os.SEEK_CUR) if stat.S_ISREG(opened.st_mode) else 0)


def _reopen(files: dict[int, _File], unmissed: set[int]) -> list[str]:
    """Open the files again under their numbers; return what to say about those that cannot be and are missed."""
    lost = 0
    for number, file in files.items():
        try:
            if not file.path:
                raise FileNotFoundError
            fresh = os.open(file.path, file.flags)
            if file.position:
                os.lseek(fresh, file.position, os.SEEK_SET)
        except OSError:
            lost += number not in unmissed
            # Whoever uses it gets an error, and no other file can take its number.
            fresh = os.open("/", os.O_PATH | os.O_CLOEXEC)
        if fresh != number:
            os.dup2(fresh, number, inheritable=not file.flags & os.O_CLOEXEC)
            os.close(fresh)
        else:
            os.set_inheritable(number, not file.flags & os.O_CLOEXEC)
    return [f"{lost} open files, pipes or connections of the kernel were not forked with it"] if lost else []


def reseed() -> None:
    """Have every generator of random numbers that forks would share begin anew."""
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "tempfile" in sys.modules:
        sys.modules["tempfile"]._name_sequence = None  # type: ignore[attr-defined]
    if "ssl" in sys.modules:
        # OpenSSL knows a fork by its pid, and the pid of a process in another box may be the same.
        sys.modules["ssl"].RAND_add(os.urandom(48), 48.0)
