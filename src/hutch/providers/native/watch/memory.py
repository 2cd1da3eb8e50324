"""Limits that we hold ourselves where the kernel does not: what all watchdogs share, and memory without cgroups.

A watchdog looks now and then, so it is later than the kernel and is reported as such (`enforced_by: watchdog`). One
of each kind serves all boxes of a keeper; a box in which nothing runs costs one small read a second.

Not seen by the memory watchdog: a memfd that is written but not mapped, detached System V segments, and what lies in
Unix sockets and pipes.
"""

import asyncio
import math
import os
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from hutch.logs import log
from hutch.providers.native.watch import socket_memory
from hutch.providers.native.watch.processes import BoxProcesses, at_most, ended, fair_share, name_of, open_files

FASTEST = 0.05
SLOWEST = 0.25
IDLE = 1.0
FILL_RATE = 2 << 30  # bytes a second that a process can touch at best: how soon free room may be used up
DEATH_PATIENCE = 2.0  # a killed process frees its memory late; only then may a second one pay


class Hit(NamedTuple):
    """A limit was met. `killed` is the host pid of the process that paid for it, None if the caller is to decide."""

    box_id: str
    limit: str  # "memory" | "disk"
    used: float
    allowed: float
    unit: str
    killed: int | None = None
    killed_name: str = ""


@dataclass(slots=True)
class _Box:
    box_id: str
    processes: BoxProcesses
    limit_bytes: int
    due: float = field(default=math.inf, kw_only=True)

    def close(self) -> None:
        self.processes.close()


_B = TypeVar("_B", bound=_Box)


class _Watchdog(ABC, Generic[_B]):
    """What both have in common: the boxes, when each is due, and the loop."""

    def __init__(self) -> None:
        self._boxes: dict[str, _B] = {}
        # Held while a box is looked at: `forget` closes descriptors that a check in another thread may be using.
        self._lock = threading.Lock()
        self._wake: Callable[[], object] = lambda: None
        self._planned = 0.0  # when the loop looks next; waking it is needed only to look sooner

    def forget(self, box_id: str) -> None:
        """Stop watching; unknown ids are fine."""
        with self._lock:
            box = self._boxes.pop(box_id, None)
            if box:
                box.close()

    def close(self) -> None:
        """Forget every box."""
        for box_id in self._boxes.copy():
            self.forget(box_id)

    def include(self, box_id: str, pid: int) -> None:
        """A process entered the box from outside (the guest is not its parent)."""
        with self._lock:
            self._boxes[box_id].processes.include(pid)
        self.stir(box_id)

    def limit(self, box_id: str, limit_bytes: int) -> None:
        """Unknown ids are fine."""
        box = self._boxes.get(box_id)
        if box:
            box.limit_bytes = limit_bytes
            self.stir(box_id)

    def stir(self, box_id: str) -> None:
        """Something was started in the box: look soon, however idle it was."""
        box = self._boxes.get(box_id)
        if box:
            self._hasten(box)

    def check(self) -> list[Hit]:
        """Look at every box that is due."""
        hits: list[Hit] = []
        now = time.monotonic()
        for box_id in [box_id for box_id, box in self._boxes.copy().items() if box.due <= now]:
            with self._lock:
                box = self._boxes.get(box_id)
                if box is None:
                    continue
                box.due = now + IDLE
                hit = self._look(box)
            if hit:
                hits.append(hit)
        return hits

    async def run(self, on_hit: Callable[[Hit], None]) -> None:
        """Watch until cancelled. A failure is reported and the watch goes on."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(woken.set)
        try:
            while True:
                self._planned, woken_early = self._next_due(), True
                try:
                    async with asyncio.timeout(max(0.0, self._planned - time.monotonic())):
                        await woken.wait()
                except TimeoutError:
                    woken_early = False
                woken.clear()
                if not woken_early:
                    await self._round(on_hit)
        finally:
            self._wake = lambda: None

    async def _round(self, on_hit: Callable[[Hit], None]) -> None:
        try:
            # Reading a process's memory map can wait for its lock: not on the event loop.
            for hit in await asyncio.to_thread(self.check):
                on_hit(hit)
        except Exception as error:
            log("native").error("a watchdog's round failed; it goes on", error=error, trace=traceback.format_exc())

    def _add(self, box: _B) -> None:
        self.forget(box.box_id)
        with self._lock:
            self._boxes[box.box_id] = box
        self._hasten(box)

    def _hasten(self, box: _B) -> None:
        box.due = min(box.due, time.monotonic() + FASTEST)
        if box.due < self._planned:
            self._planned = box.due
            self._wake()

    def _next_due(self) -> float:
        """When to look again; boxes that are due about then are looked at together."""
        now = time.monotonic()
        soonest = min((box.due for box in self._boxes.copy().values()), default=now + 3600)
        return max(soonest, now + FASTEST / 2)

    @abstractmethod
    def _look(self, box: _B) -> Hit | None:
        """Look at one box and set when it is due again."""


@dataclass(slots=True)
class _MemoryBox(_Box):
    stores: tuple[int, ...] = ()
    kills: int = 0
    dying: int | None = None  # pidfd of the last victim
    patience: float = 0.0

    def close(self) -> None:
        _Box.close(self)
        for descriptor in (*self.stores, *([] if self.dying is None else [self.dying])):
            os.close(descriptor)


class MemoryWatchdog(_Watchdog[_MemoryBox]):
    """Kills a box's largest process when all of them, with the box's tmpfs files, hold more than the limit."""

    def watch(self, box_id: str, guest_pid: int, limit_bytes: int, stores: Iterable[int] = ()) -> None:
        """`limit_bytes` is the sum of memory and tmpfs sizes; `stores` are descriptors in the tmpfs (duplicated)."""
        copies = tuple(os.dup(descriptor) for descriptor in stores)
        self._add(_MemoryBox(box_id, BoxProcesses(guest_pid), limit_bytes, stores=copies))

    def oom_kills(self, box_id: str) -> int | None:
        """Kills so far, the counterpart of a group's fact; None if the box is not watched."""
        box = self._boxes.get(box_id)
        return box.kills if box else None

    def _look(self, box: _MemoryBox) -> Hit | None:
        users = box.processes.users()
        if not users:
            box.due = time.monotonic() + IDLE
            return None
        if self._still_dying(box):
            box.due = time.monotonic() + FASTEST
            return None
        stored = sum(_filled(descriptor) for descriptor in box.stores)
        sockets = socket_memory.at_most(box.processes.guest)
        used = stored + sockets + sum(at_most(pid) for pid in users)
        if used > box.limit_bytes:
            sockets = socket_memory.held(box.processes.guest) if sockets else 0
            shares = {pid: fair_share(pid) for pid in users}
            # A mapped file of the box's tmpfs is in both; counting it twice would kill the innocent.
            shared = max(stored, sum(share.shared for share in shares.values()))
            used = sockets + shared + sum(share.anonymous for share in shares.values())
        room = max(0, box.limit_bytes - used)
        box.due = time.monotonic() + min(SLOWEST, max(FASTEST, room / FILL_RATE))
        if used <= box.limit_bytes:
            return None
        if sockets > used // 2:  # whose they are the kernel does not say: most likely his who has most files open
            victim = max(shares, key=open_files)
        else:
            victim = max(shares, key=lambda pid: shares[pid].anonymous + shares[pid].shared)
        name = name_of(victim)
        box.dying = box.processes.kill(victim)
        if box.dying is None:
            return None
        box.patience = time.monotonic() + DEATH_PATIENCE
        box.kills += 1
        return Hit(box.box_id, "memory", used, box.limit_bytes, "bytes", victim, name)

    def _still_dying(self, box: _MemoryBox) -> bool:
        if box.dying is None:
            return False
        if not ended(box.dying) and time.monotonic() < box.patience:
            return True
        os.close(box.dying)
        box.dying = None
        return False


def _filled(descriptor: int) -> int:
    status = os.fstatvfs(descriptor)
    return (status.f_blocks - status.f_bfree) * status.f_frsize
