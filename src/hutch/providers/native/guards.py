"""Watchdogs of a keeper's native boxes: memory and CPU where no control group holds them, disk where no size does.

They run only while there is a box that needs them.
"""

import asyncio
import logging
import os

from hutch.errors import HutchError
from hutch.model.limits import Limits
from hutch.providers.native.box import NativeInstance
from hutch.providers.native.cpu_watchdog import CpuWatchdog
from hutch.providers.native.watchdog import DiskWatchdog, Hit, MemoryWatchdog

log = logging.getLogger("hutch.native.guards")


class Guards:
    """One of each kind, started with the first box that needs it."""

    def __init__(self) -> None:
        self._memory = MemoryWatchdog()
        self._disk = DiskWatchdog()
        self._cpu = CpuWatchdog()
        self._rounds: dict[str, asyncio.Task[None]] = {}
        self._boxes: dict[str, NativeInstance] = {}
        self._endings: set[asyncio.Task[None]] = set()

    def watch_memory(self, box: NativeInstance, pid: int) -> None:
        self._boxes[box.record.box_id] = box
        self._memory.watch(box.record.box_id, pid, box.limits.memory_mb << 20)
        self._start("memory")

    def watch_disk(self, box: NativeInstance, pid: int, store: str) -> None:
        self._boxes[box.record.box_id] = box
        directory = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._disk.watch(box.record.box_id, pid, box.limits.disk_mb << 20, directory)
        finally:
            os.close(directory)
        self._start("disk")

    def watch_cpu(self, box: NativeInstance, pid: int) -> None:
        """Also where the share is all the machine has: the same watchdog pauses the box."""
        self._boxes[box.record.box_id] = box
        self._cpu.watch(box.record.box_id, pid, box.limits.cpus)
        self._start("cpu")

    def pause(self, box_id: str) -> bool:
        """Stop every process of the box by signals; False if nobody here watches it."""
        if box_id not in self._boxes:
            return False
        self._cpu.hold(box_id)
        return True

    def resume(self, box_id: str) -> bool:
        if box_id not in self._boxes:
            return False
        self._cpu.let_go(box_id)
        return True

    def change(self, box_id: str, limits: Limits) -> None:
        if box_id in self._boxes:
            self._cpu.share(box_id, limits.cpus)
            self._memory.limit(box_id, limits.memory_mb << 20)

    def oom_kills(self, box_id: str) -> int:
        return self._memory.oom_kills(box_id) or 0

    def stir(self, box_id: str) -> None:
        """A command starts in the box: look soon."""
        if box_id in self._boxes:
            self._memory.stir(box_id)
            self._disk.stir(box_id)
            self._cpu.stir(box_id)

    def forget(self, box_id: str) -> None:
        self._boxes.pop(box_id, None)
        self._memory.forget(box_id)
        self._disk.forget(box_id)
        self._cpu.forget(box_id)

    async def close(self) -> None:
        tasks = [*self._rounds.values(), *self._endings]
        self._rounds.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._memory.close()
        self._disk.close()
        self._cpu.close()

    def _start(self, kind: str) -> None:
        task = self._rounds.get(kind)
        if task is None or task.done():
            dogs: dict[str, MemoryWatchdog | DiskWatchdog | CpuWatchdog] = {
                "memory": self._memory,
                "disk": self._disk,
                "cpu": self._cpu,
            }
            dog = dogs[kind]
            self._rounds[kind] = asyncio.create_task(dog.run(self._hit), name=f"hutch {kind} watchdog")

    def _hit(self, hit: Hit) -> None:
        log.warning(
            "box %s is over its %s limit: %d of %d bytes", hit.box_id, hit.limit, hit.used_bytes, hit.limit_bytes
        )
        box = self._boxes.get(hit.box_id)
        if hit.limit == "disk" and box is not None:
            # Whoever still writes would go on filling the machine's disk; the box and its files stay.
            ending = asyncio.create_task(self._end_writers(box))
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def _end_writers(self, box: NativeInstance) -> None:
        try:
            await box.kill_all()
        except HutchError as error:
            log.warning("the writers of box %s could not be ended: %s", box.record.box_id, error)
