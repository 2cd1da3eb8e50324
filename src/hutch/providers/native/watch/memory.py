"""The base of all watchdogs, and the memory watchdog for machines without memory control groups.

A watchdog checks periodically, so it reacts later than the kernel and is reported as such (`enforced_by: watchdog`).
One of each kind serves all boxes of a keeper. A box in which nothing runs costs one small read a second.

The memory watchdog does not see a memfd that is written but not mapped, detached System V segments, and data in Unix
sockets and pipes.
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
from hutch.providers.native.watch.processes import BoxProcesses, at_most, ended, name_of, open_files, proportional_share

FASTEST = 0.05
SLOWEST = 0.25
IDLE = 1.0
FILL_RATE = 2 << 30  # bytes a second that a process can write at best, for how soon free memory may be used up
DEATH_TIMEOUT = 2.0  # a killed process frees its memory late; a second one is killed only after this


class LimitHit(NamedTuple):
    """A box is over a limit. `killed` is the host pid of the process that was killed; None if the caller decides."""

    box_id: str
    limit: str  # "memory" | "disk"
    used: float
    allowed: float
    unit: str
    killed: int | None = None
    killed_name: str = ""


@dataclass(slots=True)
class WatchedBox:
    box_id: str
    processes: BoxProcesses
    limit_bytes: int
    due: float = field(default=math.inf, kw_only=True)

    def close(self) -> None:
        self.processes.close()


_B = TypeVar("_B", bound=WatchedBox)


class Watchdog(ABC, Generic[_B]):
    """What all watchdogs share: the boxes, when each is due, and the loop."""

    def __init__(self) -> None:
        self._boxes: dict[str, _B] = {}
        # Held while a box is checked, because `forget` closes descriptors that a check in another thread may be using.
        self._lock = threading.Lock()
        self._wake: Callable[[], object] = lambda: None
        self._planned = 0.0  # when the loop checks next; it is woken only to check sooner

    def forget(self, box_id: str) -> None:
        """Stop watching the box. Unknown ids are ignored."""
        with self._lock:
            box = self._boxes.pop(box_id, None)
            if box:
                box.close()

    def close(self) -> None:
        """Forget every box."""
        for box_id in self._boxes.copy():
            self.forget(box_id)

    def include(self, box_id: str, pid: int) -> None:
        """Also watch a process that entered the box from outside, so that the guest is not its parent.

        Unknown ids are ignored.
        """
        with self._lock:
            if box := self._boxes.get(box_id):
                box.processes.include(pid)
        self.note_activity(box_id)

    def limit(self, box_id: str, limit_bytes: int) -> None:
        """Change the limit. Unknown ids are ignored."""
        box = self._boxes.get(box_id)
        if box:
            box.limit_bytes = limit_bytes
            self.note_activity(box_id)

    def note_activity(self, box_id: str) -> None:
        """Check the box soon, because something was started in it."""
        box = self._boxes.get(box_id)
        if box:
            self._hasten(box)

    def check(self) -> list[LimitHit]:
        """Check every box that is due."""
        hits: list[LimitHit] = []
        now = time.monotonic()
        for box_id in [box_id for box_id, box in self._boxes.copy().items() if box.due <= now]:
            with self._lock:
                box = self._boxes.get(box_id)
                if box is None:
                    continue
                box.due = now + IDLE
                hit = self._check_box(box)
            if hit:
                hits.append(hit)
        return hits

    async def run(self, on_hit: Callable[[LimitHit], None]) -> None:
        """Watch until cancelled. A failure is logged, and the watch goes on."""
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

    async def _round(self, on_hit: Callable[[LimitHit], None]) -> None:
        try:
            # Reading a process's memory map can wait for a kernel lock, so it runs in a thread.
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
        """The time of the next check. Boxes that are due about then are checked together."""
        now = time.monotonic()
        soonest = min((box.due for box in self._boxes.copy().values()), default=now + 3600)
        return max(soonest, now + FASTEST / 2)

    @abstractmethod
    def _check_box(self, box: _B) -> LimitHit | None:
        """Check one box and set when it is due again."""


@dataclass(slots=True)
class _MemoryBox(WatchedBox):
    stores: tuple[int, ...] = ()
    kills: int = 0
    dying: int | None = None  # pidfd of the last victim
    dying_until: float = 0.0

    def close(self) -> None:
        WatchedBox.close(self)
        for descriptor in (*self.stores, *([] if self.dying is None else [self.dying])):
            os.close(descriptor)


class MemoryWatchdog(Watchdog[_MemoryBox]):
    """Kills a box's largest process when all of them, with the box's tmpfs files, hold more than the limit."""

    def watch(self, box_id: str, guest_pid: int, limit_bytes: int, stores: Iterable[int] = ()) -> None:
        """Watch a box. `limit_bytes` is the sum of memory and tmpfs sizes, `stores` are descriptors in the tmpfs."""
        copies = tuple(os.dup(descriptor) for descriptor in stores)
        self._add(_MemoryBox(box_id, BoxProcesses(guest_pid), limit_bytes, stores=copies))

    def oom_kills(self, box_id: str) -> int | None:
        """Kills so far, as a control group would count them; None if the box is not watched."""
        box = self._boxes.get(box_id)
        return box.kills if box else None

    def _check_box(self, box: _MemoryBox) -> LimitHit | None:
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
            shares = {pid: proportional_share(pid) for pid in users}
            # A mapped file of the box's tmpfs is in both numbers, and must not be counted twice.
            shared = max(stored, sum(share.shared for share in shares.values()))
            used = sockets + shared + sum(share.anonymous for share in shares.values())
        room = max(0, box.limit_bytes - used)
        box.due = time.monotonic() + min(SLOWEST, max(FASTEST, room / FILL_RATE))
        if used <= box.limit_bytes:
            return None
        if sockets > used // 2:  # the kernel does not say whose they are: take the process with most open files
            victim = max(shares, key=open_files)
        else:
            victim = max(shares, key=lambda pid: shares[pid].anonymous + shares[pid].shared)
        name = name_of(victim)
        box.dying = box.processes.kill(victim)
        if box.dying is None:
            return None
        box.dying_until = time.monotonic() + DEATH_TIMEOUT
        box.kills += 1
        return LimitHit(box.box_id, "memory", used, box.limit_bytes, "bytes", victim, name)

    def _still_dying(self, box: _MemoryBox) -> bool:
        if box.dying is None:
            return False
        if not ended(box.dying) and time.monotonic() < box.dying_until:
            return True
        os.close(box.dying)
        box.dying = None
        return False


def _filled(descriptor: int) -> int:
    status = os.fstatvfs(descriptor)
    return (status.f_blocks - status.f_bfree) * status.f_frsize
