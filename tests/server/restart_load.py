"""Clients of a server that is killed again and again: what each was answered, and what it holds the server to.

A program of its own, which knows nothing of the kills: `python -m tests.server.restart_load URL CLIENTS SECONDS`, with
the key in HUTCH_KEY. It ends with 0 and one line of JSON if every promise was kept.
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hutch import Hutch
from hutch.client.transport.heartbeat import Rhythm
from hutch.errors import HutchError

T = TypeVar("T")

RHYTHM = Rhythm(interval_sec=2.0, answer_timeout_sec=10.0, retry_sec=0.1, max_retry_sec=1.0, outage_timeout_sec=120.0)
SMALL = {"memory_mb": 64, "disk_mb": 16, "ttl_sec": 1800}
TICKING = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done"


@dataclass
class Ledger:
    """What one client asked for, and what of it was acknowledged."""

    files: dict[str, bytes] = field(default_factory=dict)
    unsure: set[str] = field(default_factory=set)
    """Files and marks whose outcome is unknown."""
    marks: set[str] = field(default_factory=set)
    """Lines that acknowledged commands have appended."""
    jobs: dict[str, bytes] = field(default_factory=dict)
    boxes: set[str] = field(default_factory=set)
    destroyed: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)

    async def step(self, work: Callable[[], Awaitable[None]]) -> None:
        """Only one kind of error may come: that the server was not there, and that it is worth to try again."""
        try:
            await work()
            self.counts["acknowledged"] += 1
        except HutchError as error:
            if (error.code, error.retryable) != ("unavailable", True):
                raise
            self.counts["refused"] += 1


class Client:
    """One session with a box of its own, in which a job ticks."""

    def __init__(self, url: str, number: int) -> None:
        self.hutch = Hutch(url, session=f"load-{number}", rhythm=RHYTHM)
        self.ledger = Ledger()
        self._random = random.Random(number)
        self._count = 0

    async def work(self, until: float) -> Counter[str]:
        async with self.hutch:
            self.box = await self.hutch.create(**SMALL)
            ticking = await again(self._tick)
            lines = asyncio.create_task(self._follow(ticking))
            steps = (self._write, self._mark, self._append, self._job, self._passing_box)
            while time.monotonic() < until and not lines.done():
                self._count += 1
                await self.ledger.step(self._random.choice(steps))
            await self._settle(ticking, lines)
            await self._audit()
            await self.box.destroy()
            self.ledger.destroyed.add(self.box.id)
        return self.ledger.counts

    async def _tick(self) -> Any:
        """The job of before, if its start was not answered: the server may have died over it (`again`)."""
        started = [job for job in await self.box.jobs() if job.name == "ticking"]
        return await self.box.job(started[0].id) if started else await self.box.start(TICKING, name="ticking")

    # --- what it asks for -------------------------------------------------------------------------------------

    async def _write(self) -> None:
        name = f"f{self._random.randrange(8)}"
        self.ledger.unsure.add(name)
        data = self._random.randbytes(self._random.randrange(1, 200_000))
        await self.box.files.write(name, data)
        self.ledger.files[name] = data
        self.ledger.unsure.discard(name)
        assert await self.box.files.read(name) == data, "what was written is read"

    async def _mark(self) -> None:
        mark = f"m{self._count}"
        self.ledger.unsure.add(mark)
        result = await self.box.exec(f"echo {mark} >> marks; echo done {mark}")
        assert result.stdout == f"done {mark}\n", result
        self._sure(mark)

    async def _append(self) -> None:
        mark = f"a{self._count}"
        self.ledger.unsure.add(mark)
        await self.box.files.write("marks", f"{mark}\n", append=True)
        self._sure(mark)

    def _sure(self, mark: str) -> None:
        self.ledger.marks.add(mark)
        self.ledger.unsure.discard(mark)

    async def _job(self) -> None:
        mark = f"j{self._count}"
        self.ledger.unsure.add(mark)
        job = await self.box.start(f"echo {mark} >> marks; echo job {mark}")
        self.ledger.jobs[job.id] = f"job {mark}\n".encode()
        assert (await job.wait()).stdout_bytes == self.ledger.jobs[job.id]
        self._sure(mark)

    async def _passing_box(self) -> None:
        box = await self.hutch.create(**SMALL)
        self.ledger.boxes.add(box.id)
        await box.files.write("passing", box.id)
        assert (await box.exec(["cat", "passing"])).stdout == box.id
        if self._random.random() < 0.8:
            await box.destroy()
            self.ledger.destroyed.add(box.id)

    # --- what it holds the server to --------------------------------------------------------------------------

    async def _follow(self, job: Any) -> bytes:
        """The ticks as they come; whatever happens to the server, one stream."""
        got = b""
        async for name, piece in job.follow():
            assert name == "stdout"
            got += piece
        return got

    async def _settle(self, ticking: Any, lines: "asyncio.Task[bytes]") -> None:
        await again(lambda: ticking.signal(9))
        numbers = [int(line) for line in (await lines).split(b"\n") if line]
        assert numbers == list(range(1, len(numbers) + 1)), "the stream lost nothing and repeated nothing"
        self.ledger.counts["lines"] += len(numbers)

    async def _audit(self) -> None:
        ledger = self.ledger
        for name, data in ledger.files.items():
            if name not in ledger.unsure:
                assert await self.box.files.read(name) == data, f"{name} was acknowledged"
        marks = Counter((await self.box.files.read_text("marks")).split()) if ledger.marks else Counter()
        assert all(marks[mark] == 1 for mark in ledger.marks), "what was acknowledged was done, once"
        assert all(count == 1 for count in marks.values()), "nothing was done twice"
        assert set(marks) <= ledger.marks | ledger.unsure, "and nothing that nobody asked for"
        for job_id, output in ledger.jobs.items():
            assert (await (await self.box.job(job_id)).read(0)).data == output, "jobs keep their output"
        there = {box.id for box in await all_boxes(self.hutch)}
        assert ledger.boxes - ledger.destroyed <= there, "boxes that were acknowledged are there"
        assert not ledger.destroyed & there, "and those that were destroyed are not"
        for box_id in ledger.boxes - ledger.destroyed:
            await again(lambda box_id=box_id: self.hutch.destroy(box_id))
            ledger.destroyed.add(box_id)
        ledger.counts.update(boxes=len(ledger.boxes), jobs=len(ledger.jobs), files=len(ledger.files))
        ledger.counts["once"] += len(ledger.marks)


async def again(work: Callable[[], Awaitable[T]]) -> T:
    """Until it is acknowledged."""
    while True:
        try:
            return await work()
        except HutchError as error:
            if not error.retryable:
                raise
            await asyncio.sleep(0.1)


async def all_boxes(hutch: Hutch) -> Any:
    """`boxes()` answers "none" while the server is away; a caller that counts has to know whether it is there."""
    while not (await hutch.status()).available:
        await asyncio.sleep(0.1)
    return await hutch.boxes()


@asynccontextmanager
async def _watched(url: str, counts: Counter[str]) -> AsyncIterator[None]:
    """Another session reads the events page by page: each once, in order, whatever happens to the server."""
    async with Hutch(url, session="watcher", rhythm=RHYTHM) as hutch:
        after, going = 0, True
        seen: list[int] = []

        async def page() -> int:
            nonlocal after
            found = await hutch.events(after)
            seen.extend(event.seq for event in found)
            after = seen[-1] if seen else 0
            return len(found)

        async def read() -> None:
            while going:
                await page()
                await asyncio.sleep(0.2)

        reading = asyncio.create_task(read())
        try:
            yield
        finally:
            going = False
            await reading
            while await page():
                pass
            assert seen == sorted(set(seen)), "events come once, in order"
            counts["events"] = len(seen)


async def load(url: str, clients: int, seconds: float) -> Counter[str]:
    total: Counter[str] = Counter()
    until = time.monotonic() + seconds
    async with _watched(url, total):
        async with asyncio.TaskGroup() as group:
            working = [group.create_task(Client(url, number).work(until)) for number in range(clients)]
    for done in working:
        total.update(done.result())
    return total


if __name__ == "__main__":
    print(json.dumps(asyncio.run(load(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))), flush=True)
