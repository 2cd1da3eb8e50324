"""The watchdogs of a keeper's boxes: memory and CPU where no control group limits them, and disk where no quota does.

They run only while a box needs them, and are imported with the first one: on most machines control groups limit memory
and CPU, and most boxes are temporary.
"""

import asyncio
import os
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from hutch.errors import HutchError
from hutch.logs import log
from hutch.model.limits import Limits
from hutch.providers.guest_client.disk_overrun import Overrun, Use, full
from hutch.providers.guest_client.verdicts import Counters, Excess
from hutch.providers.native.orders import inodes

if TYPE_CHECKING:
    from hutch.providers.native.instance import NativeInstance
    from hutch.providers.native.watch.cpu import CpuWatchdog
    from hutch.providers.native.watch.disk import DiskWatchdog
    from hutch.providers.native.watch.memory import LimitHit, MemoryWatchdog

_NOTHING = Counters()
_LEAST_MEMORY = 8 << 20
"""The smallest limit that policy allows a box: sockets that hold less in all cannot be over any box's limit."""
_BOXES_AT_ONCE = 50
"""Boxes that are compared before other tasks get their turn."""
_SOCKET_PAUSE = 1.0
"""Seconds between two checks of what all sockets hold."""
_COUNT_TIMEOUT = 10.0
"""Seconds that a caller waits for the count of a large tree."""
_COUNT_PAUSE = 0.025
"""Seconds between two checks whether the count is done: half of a watchdog's shortest interval."""


class Watchdogs:
    """One watchdog of each kind, started with the first box that needs it."""

    def __init__(self) -> None:
        self._rounds: dict[str, asyncio.Task[None]] = {}
        self._boxes: dict[str, NativeInstance] = {}
        self._overruns: dict[str, Overrun] = {}
        self._endings: dict[str, asyncio.Task[None]] = {}
        self._networked: dict[str, NativeInstance] = {}
        """Boxes whose control group limits memory, but does not count all of their socket buffers."""
        self._socket_kills: dict[str, int] = {}

    @cached_property
    def _memory(self) -> "MemoryWatchdog":
        from hutch.providers.native.watch.memory import MemoryWatchdog

        return MemoryWatchdog()

    @cached_property
    def _disk(self) -> "DiskWatchdog":
        from hutch.providers.native.watch.disk import DiskWatchdog

        return DiskWatchdog()

    @cached_property
    def _cpu(self) -> "CpuWatchdog":
        from hutch.providers.native.watch.cpu import CpuWatchdog

        return CpuWatchdog()

    def watch_memory(self, box: "NativeInstance", pid: int) -> None:
        self._boxes[box.record.box_id] = box
        self._memory.watch(box.record.box_id, pid, box.limits.memory_mb << 20)
        self._start("memory", self._memory)

    def watch_sockets(self, box: "NativeInstance") -> None:
        """Watch socket buffers with one small read a second for all boxes together.

        The first read comes after a second, when most boxes of a command line have ended.
        """
        self._networked[box.record.box_id] = box
        task = self._rounds.get("sockets")
        if task is None or task.done():
            self._rounds["sockets"] = asyncio.create_task(self._watch_sockets(), name="hutch socket watchdog")

    async def _watch_sockets(self) -> None:
        while self._networked:
            await asyncio.sleep(_SOCKET_PAUSE)
            from hutch.providers.native.watch import socket_memory

            total = socket_memory.of_machine()
            if total <= _LEAST_MEMORY:
                continue
            for number, box in enumerate(tuple(self._networked.values())):
                if number % _BOXES_AT_ONCE == 0:
                    await asyncio.sleep(0)
                if total > box.limits.memory_mb << 20:
                    try:
                        await asyncio.to_thread(self._look_at_sockets, box)
                    except Exception as error:  # the task boundary: the other boxes are watched all the same
                        log("native").error("sockets not counted", box=box.record.box_id, error=error)

    def _look_at_sockets(self, box: "NativeInstance") -> None:
        from hutch.providers.native.watch import socket_memory

        box_id, held, allowed = box.record.box_id, socket_memory.held(box.pid), box.limits.memory_mb << 20
        if held > allowed and (killed := socket_memory.end_holder(box.users)) is not None:
            self._socket_kills[box_id] = self._socket_kills.get(box_id, 0) + 1
            log("native").warning(
                "sockets hold too much: a process is ended", box=box_id, held=held, of=allowed, pid=killed
            )

    def watch_disk(self, box: "NativeInstance", pid: int, store: str, *, lived: bool) -> None:
        """Watch the box's disk usage. `lived` means that the store is not new."""
        self._boxes[box.record.box_id] = box
        overrun = Overrun(Use(box.limits.disk_mb << 20, inodes(box.limits)), lived=lived)
        directory = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._disk.watch(box.record.box_id, pid, overrun, directory, box)
        finally:
            os.close(directory)
        self._overruns[box.record.box_id] = overrun
        self._start("disk", self._disk)

    def watch_cpu(self, box: "NativeInstance", pid: int) -> None:
        """Watch the box's CPU use, even if it may use all processors: the same watchdog pauses the box."""
        self._boxes[box.record.box_id] = box
        self._cpu.watch(box.record.box_id, pid, box.limits.cpus)
        self._start("cpu", self._cpu)

    def pause(self, box_id: str) -> bool:
        """Stop every process of the box by signals; False if its CPU is not watched."""
        return self._cpu.pause(box_id)

    def resume(self, box_id: str) -> bool:
        """Let its processes go on; False if its CPU is not watched."""
        return self._cpu.resume(box_id)

    def change(self, box_id: str, limits: Limits) -> None:
        if box_id in self._boxes:
            self._cpu.share(box_id, limits.cpus)
            self._memory.limit(box_id, limits.memory_mb << 20)

    def counters(self, box_id: str) -> Counters:
        """What the watchdogs have done to the box."""
        if box_id not in self._boxes:
            return Counters(oom_kills=kills) if (kills := self._socket_kills.get(box_id)) else _NOTHING
        kills = (self._memory.oom_kills(box_id) or 0) + self._socket_kills.get(box_id, 0)
        overrun = self._overruns.get(box_id)
        if overrun is None:
            return Counters(oom_kills=kills)
        return Counters(oom_kills=kills, disk_ends=overrun.ends, excess=overrun.reason)

    def disk_watch(self, box_id: str) -> "DiskWatch":
        return DiskWatch(self, box_id)

    def over_disk(self, box_id: str) -> Excess | None:
        """The excess at the last count; None if the box was within its limit or is not watched."""
        overrun = self._overruns.get(box_id)
        return overrun.excess if overrun is not None else None

    async def over_limit(self, box_id: str) -> Excess | None:
        """The excess that keeps commands from starting in the box; None if they may start."""
        overrun = self._overruns.get(box_id)
        if overrun is None or overrun.excess is None:
            return None
        await self._counted(box_id, lambda: not overrun.settling)
        return await self.still_over_disk(box_id) if overrun.is_blocked else None

    async def still_over_disk(self, box_id: str) -> Excess | None:
        """Like `over_disk`, but after a new count that sees what was removed since."""
        if self.over_disk(box_id) is None:
            return None
        enough = self._disk.counts(box_id) + 2  # one count may be under way
        await self._counted(box_id, lambda: self._disk.counts(box_id) >= enough)
        return self.over_disk(box_id)

    async def _counted(self, box_id: str, enough: Callable[[], bool]) -> None:
        """Wait until `enough` holds for a box that is over its disk limit."""
        try:
            async with asyncio.timeout(_COUNT_TIMEOUT):
                while self.over_disk(box_id) and not enough():
                    self._disk.note_activity(box_id)
                    await asyncio.sleep(_COUNT_PAUSE)
        except TimeoutError:
            log("native").warning("the disk is not counted in time", box=box_id, seconds=_COUNT_TIMEOUT)

    def include(self, box_id: str, pid: int) -> None:
        """Also watch a process that entered the box from outside, with its descendants."""
        for watchdog in (self._memory, self._disk, self._cpu):
            watchdog.include(box_id, pid)

    def note_activity(self, box_id: str) -> None:
        """Check the box soon, because a command starts in it."""
        if box_id in self._boxes:
            self._memory.note_activity(box_id)
            self._disk.note_activity(box_id)
            self._cpu.note_activity(box_id)

    async def settled(self, box_id: str) -> None:
        """Wait until the processes that an earlier instance of the box was to end have ended.

        Otherwise processes that start now could be ended with them.
        """
        if ending := self._endings.get(box_id):
            await asyncio.wait([ending])

    def forget(self, box_id: str) -> None:
        self._networked.pop(box_id, None)
        self._socket_kills.pop(box_id, None)
        if self._boxes.pop(box_id, None) is None:
            return
        self._overruns.pop(box_id, None)
        self._memory.forget(box_id)
        self._disk.forget(box_id)
        self._cpu.forget(box_id)

    async def close(self) -> None:
        tasks = [*self._rounds.values(), *self._endings.values()]
        self._rounds.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not self._boxes:
            return
        self._memory.close()
        self._disk.close()
        self._cpu.close()

    def _start(self, kind: str, dog: "MemoryWatchdog | DiskWatchdog | CpuWatchdog") -> None:
        task = self._rounds.get(kind)
        if task is None or task.done():
            self._rounds[kind] = asyncio.create_task(dog.run(self._hit), name=f"hutch {kind} watchdog")

    def _hit(self, hit: "LimitHit") -> None:
        log("native").warning(
            "box is over its limit", box=hit.box_id, limit=hit.limit, used=round(hit.used), allowed=round(hit.allowed),
            unit=hit.unit,
        )  # fmt: skip
        box, overrun = self._boxes.get(hit.box_id), self._overruns.get(hit.box_id)
        if hit.limit != "disk" or box is None or overrun is None or hit.box_id in self._endings:
            return
        # End the processes that would go on filling the machine's disk. The box and its files stay.
        ending = asyncio.create_task(self._end_writers(box, overrun))
        self._endings[hit.box_id] = ending
        ending.add_done_callback(lambda _: self._endings.pop(hit.box_id, None))

    async def _end_writers(self, box: "NativeInstance", overrun: Overrun) -> None:
        try:
            await box.end_processes(overrun)
        except HutchError as error:
            log("native").warning("the box's writers are ended from outside", box=box.record.box_id, error=error)
            await asyncio.to_thread(self._disk.end_users, box.record.box_id)
        finally:
            self._disk.ended(box.record.box_id)


class DiskWatch:
    """Connects the file operations of a box with its disk watchdog."""

    def __init__(self, watchdogs: Watchdogs, box_id: str) -> None:
        self._watchdogs = watchdogs
        self._box_id = box_id

    async def admit(self, op: str) -> None:
        if excess := await self._watchdogs.still_over_disk(self._box_id):
            raise full(excess, op)

    def obstacle(self, op: str) -> HutchError | None:
        excess = self._watchdogs.over_disk(self._box_id)
        return full(excess, op) if excess else None

    def note_activity(self) -> None:
        self._watchdogs.note_activity(self._box_id)
