"""Process trees: finding the descendants of a process through /proc, and ending, stopping or resuming them all."""

import asyncio
import os
import signal
from collections.abc import Iterable

from hutch.errors import EngineError
from hutch.linux.processes import Identity, boot_id, kill, start_time

_TIMEOUT = 10.0
_POLL_SECONDS = 0.005
_STOPPED = (b"T", b"t", b"Z", b"X")


def identity(pid: int) -> Identity | None:
    """The identity of a running process; None if there is no such process."""
    start = start_time(pid)
    return None if start is None else Identity(pid, start, boot_id())


def descendants(roots: Iterable[int]) -> list[Identity]:
    """Every descendant of these processes, parents before children, without the processes themselves."""
    children: dict[int, list[int]] = {}
    for pid, (_, parent) in _table().items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    waiting = list(roots)
    while waiting:
        of_this = children.get(waiting.pop(), [])
        found += of_this
        waiting += of_this
    return [each for pid in found if (each := identity(pid)) is not None]


async def end(roots: Iterable[Identity], *, grace: float) -> None:
    """End every process of these trees.

    Descendants are killed first: a program that started a jail cleans up when the jail has ended, and has `grace`
    seconds for that.
    """
    loop = asyncio.get_running_loop()
    roots = list(roots)
    started = loop.time()
    while living := [root for root in roots if root.alive()]:
        lower = descendants(root.pid for root in living)
        waited = loop.time() - started
        for process in lower or (living if waited >= grace else []):
            _send(process, signal.SIGKILL)
        if waited > _TIMEOUT:
            raise EngineError(f"processes {[root.pid for root in living]} cannot be killed", op="destroy")
        await asyncio.sleep(_POLL_SECONDS)


async def stop(root: Identity) -> None:
    """Stop every descendant of this process. Children that are forked meanwhile are found in the next round."""
    signalled: set[Identity] = set()
    async with asyncio.timeout(_TIMEOUT):
        while True:
            table = _table()
            states = {each: table.get(each.pid, (b"X", 0))[0] for each in descendants([root.pid])}
            # A process that waits in the kernel (D) stops before it does anything else. It may wait for long: a parent
            # in vfork(2) waits for its child to call execve(2), and we have just stopped the child.
            still = {
                each for each, state in states.items() if state in _STOPPED or (state == b"D" and each in signalled)
            }
            moving = states.keys() - still
            if not moving:
                return
            for process in moving:
                _send(process, signal.SIGSTOP)
            signalled |= moving
            await asyncio.sleep(_POLL_SECONDS)


def resume(root: Identity) -> None:
    for process in descendants([root.pid]):
        _send(process, signal.SIGCONT)


def _send(process: Identity, number: int) -> None:
    pidfd = process.open()
    if pidfd is not None:
        try:
            kill(pidfd, number)
        finally:
            os.close(pidfd)


def _table() -> dict[int, tuple[bytes, int]]:
    """State and parent of every process, see proc_pid_stat(5)."""
    found: dict[int, tuple[bytes, int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[int(name)] = (fields[0], int(fields[1]))
    return found
