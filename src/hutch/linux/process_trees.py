"""A process with everything below it: found through /proc, ended and halted as a whole."""

import asyncio
import os
import signal
from collections.abc import Iterable

from hutch.errors import EngineError
from hutch.linux.processes import Identity, boot_id, kill, start_time

_PATIENCE = 10.0
_STEP = 0.005
_STOPPED = (b"T", b"t", b"Z", b"X")


def identity(pid: int) -> Identity | None:
    """Of a process that runs now."""
    start = start_time(pid)
    return None if start is None else Identity(pid, start, boot_id())


def below(roots: Iterable[int]) -> list[Identity]:
    """Every descendant of these processes, parents before children; the processes themselves are not among them."""
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


async def end(roots: Iterable[Identity], *, farewell: float) -> None:
    """No process of these trees lives when this returns. What is below goes first: a program that started a jail cleans
    up when the jail has ended, for which it has `farewell` seconds."""
    loop = asyncio.get_running_loop()
    roots = list(roots)
    started = loop.time()
    while living := [root for root in roots if root.alive()]:
        lower = below(root.pid for root in living)
        waited = loop.time() - started
        for process in lower or (living if waited >= farewell else []):
            _send(process, signal.SIGKILL)
        if waited > _PATIENCE:
            raise EngineError(f"processes {[root.pid for root in living]} cannot be killed", op="destroy")
        await asyncio.sleep(_STEP)


async def halt(root: Identity) -> None:
    """Stop everything below this process; a process that forks meanwhile is met in the next round."""
    told: set[Identity] = set()
    async with asyncio.timeout(_PATIENCE):
        while True:
            table = _table()
            states = {each: table.get(each.pid, (b"X", 0))[0] for each in below([root.pid])}
            # Whoever waits in the kernel stops before it does anything else. It may wait for long: a parent that made
            # its child by vfork(2), for that child to start a program, and we have just stopped the child.
            still = {each for each, state in states.items() if state in _STOPPED or (state == b"D" and each in told)}
            moving = states.keys() - still
            if not moving:
                return
            for process in moving:
                _send(process, signal.SIGSTOP)
            told |= moving
            await asyncio.sleep(_STEP)


def go_on(root: Identity) -> None:
    for process in below([root.pid]):
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
