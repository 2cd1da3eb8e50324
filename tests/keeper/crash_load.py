"""A process that keeps boxes and works on them until it is killed. It prints what it was answered, line by line.

Each line is written right after the answer came (or, for what it is about to end, right before the question), with one
write to standard output: whatever stands there had been acknowledged when the process died.

    keeper ID          the keeper's name               going ID          it is about to be destroyed
    box ID RETENTION   a box was made                  gone ID           it was destroyed
    file ID PATH TEXT  a file was written              stops ID          its processes are about to be ended
    job ID JOB KIND    a job was started               back ID           it was restored
    line ID JOB N      the job's line N was read       epoch ID N        it was taken over
"""

import asyncio
import os
import random
import sys
import traceback

from hutch.errors import BoxBusy, LeaseLost
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.access.jobs import JobHandle
from hutch.keeper.embedded import Hutch

TASKS = 3
KEPT = 3
"""Boxes that each task has at once."""
JOBS = {"brief": "seq 0 19; sleep 0.2; seq 20 39", "long": "seq 0 19; sleep 0.2; seq 20 39; exec sleep 1000"}
LAST_LINE = 39


def tell(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Worker:
    """One task of the load, with boxes of its own."""

    def __init__(self, hutch: Hutch, seed: int) -> None:
        self._hutch = hutch
        self._dice = random.Random(seed)
        self._boxes: list[BoxHandle] = []
        self._jobs: dict[str, list[JobHandle]] = {}
        self._files = 0

    async def work(self) -> None:
        await self._create()
        while True:
            act = self._dice.choice(
                (self._create, self._write, self._write, self._start, self._start, self._read, self._read, self._exec,
                 self._take_over, self._pause, self._stop, self._destroy)
            )  # fmt: skip
            await act()

    def _any(self) -> BoxHandle:
        return self._dice.choice(self._boxes)

    async def _create(self) -> None:
        if len(self._boxes) >= KEPT:
            return
        retention = self._dice.choice(("temporary", "persistent"))
        key = f"key-{self._dice.random()}" if self._dice.random() < 0.3 else ""
        box = await self._hutch.create(key=key, memory_mb=64, disk_mb=16, retention=retention)
        self._boxes.append(box)
        tell("box", box.id, retention)

    async def _write(self) -> None:
        box = self._any()
        self._files += 1
        path, text = f"notes/{self._files}.txt", f"{self._dice.random()}"
        await box.files.write(path, text)
        tell("file", box.id, path, text)

    async def _exec(self) -> None:
        box = self._any()
        self._files += 1
        result = await box.exec(f"echo {self._files} > by-command-{self._files}; cat by-command-{self._files}")
        assert result.stdout == f"{self._files}\n", result
        tell("file", box.id, f"by-command-{self._files}", result.stdout.strip())

    async def _start(self) -> None:
        box, kind = self._any(), self._dice.choice(sorted(JOBS))
        if len(self._jobs.get(box.id, [])) >= 3:
            return
        job = await box.start(JOBS[kind])
        tell("job", box.id, job.id, kind)
        self._jobs.setdefault(box.id, []).append(job)

    async def _read(self) -> None:
        box = self._any()
        jobs = self._jobs.get(box.id)
        if not jobs:
            return
        job = self._dice.choice(jobs)
        chunk = await job.read(0, wait=0.01)
        lines = chunk.data.decode().split("\n")[:-1]
        assert lines == [str(number) for number in range(len(lines))], lines
        if lines:
            tell("line", box.id, job.id, lines[-1])

    async def _take_over(self) -> None:
        box = self._any()
        taken = await self._hutch.attach(box.id, takeover=True)
        tell("epoch", box.id, taken._epoch)
        try:
            await box.exec(["true"])
        except LeaseLost:
            pass
        else:
            raise AssertionError("a handle worked after its box was taken over")
        self._boxes[self._boxes.index(box)] = taken
        self._jobs[box.id] = [await taken.job(job.id) for job in self._jobs.get(box.id, [])]

    async def _pause(self) -> None:
        await self._any().pause()

    async def _stop(self) -> None:
        """End a persistent box's processes and have it restored."""
        box = self._any()
        if box.spec.retention != "persistent":
            return
        tell("stops", box.id)
        self._jobs.pop(box.id, None)
        keeper = self._hutch._keeper
        await keeper.teardown.stop(await keeper.live(box.id), "the load stops it")
        restored = await self._hutch.attach(box.id)
        self._boxes[self._boxes.index(box)] = restored
        tell("back", box.id)

    async def _destroy(self) -> None:
        if len(self._boxes) < 2:
            return
        box = self._boxes.pop(0)
        tell("going", box.id)
        await box.destroy()
        tell("gone", box.id)


async def main(state: str, run: str, seed: int, kind: str) -> None:
    hutch = Hutch(state_dir=state, run_dir=run, provider="native", orphan_grace_sec=120, log_level="off")
    tell("keeper", hutch._keeper.id)
    async with hutch:
        if kind == "restart":
            tell("started")
            await asyncio.Event().wait()
        second = await Hutch(keeper=hutch._keeper).create(memory_mb=64)
        tell("box", second.id, "temporary")
        try:
            await hutch.attach(second.id)
        except BoxBusy:
            tell("held", second.id)
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(TASKS):
                    group.create_task(Worker(hutch, seed * TASKS + number).work())
        except BaseExceptionGroup:
            # Its spawner was killed a moment before it. To close now, and end its boxes in good order, would be right,
            # and is not what is tried here; if nobody kills it, the test says that it is stuck.
            traceback.print_exc()
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
