"""A server under mixed load for long: whenever the load rests, it holds what it held before."""

import asyncio
import random
import sqlite3
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import pytest

from hutch import Hutch
from hutch.errors import HutchError
from tests.leaks import descendants
from tests.proofs import write
from tests.server.serving import Server, serving

FLAT_TABLES = ("boxes", "notes")
"""What is there. The others are histories, each with a bound of its own: tombstones, events, receipts, their chains."""


@dataclass(frozen=True)
class Held:
    """What a server holds while nobody asks anything of it."""

    memory_kb: int
    descriptors: int
    threads: int
    processes: int
    directories: int
    rows: int

    def without_memory(self) -> tuple[int, ...]:
        return (self.descriptors, self.threads, self.processes, self.directories, self.rows)


def held(server: Server) -> Held:
    process = Path(f"/proc/{server.pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    with sqlite3.connect(f"file:{server.state}/hutch.db?mode=ro", uri=True) as database:
        counts = [database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in FLAT_TABLES]
    return Held(
        memory_kb=int(status["RssAnon"].split()[0]), descriptors=len(list((process / "fd").iterdir())),
        threads=int(status["Threads"]), processes=len(descendants(server.pid)),
        directories=len([path for path in server.run.iterdir() if path.is_dir()]), rows=sum(counts),
    )  # fmt: skip


async def settled(server: Server) -> Held:
    """The same twice in a row: half-made boxes, idle threads and the kernel's cleanup have come to rest."""
    before = held(server)
    for _ in range(100):
        await asyncio.sleep(0.3)
        now = held(server)
        if now.without_memory() == before.without_memory():
            return now
        before = now
    return before


async def a_life(hutch: Hutch, chance: random.Random) -> int:
    """A box and some of all that can be done with one; how many operations that were."""
    async with hutch.box(memory_mb=64, disk_mb=32, labels={"soak": str(chance.random())}) as box:
        await box.exec(["true"])
        data = chance.randbytes(chance.randrange(200_000))
        await box.files.write("d/data", data)
        assert await box.files.read("d/data") == data
        await box.files.write("d/text", "a b")
        await box.files.edit("d/text", "a", "b")
        await box.exec("seq 10000 > numbers; cat; exit 3", stdin="x" * 1000)
        assert (await box.files.grep("^42$", root=".")).hits
        async for _ in box.stream("cat d/data; echo told >&2"):
            pass
        job = await box.start("while read line; do echo $line $line; done")
        await job.write("one\n")
        async for _, piece in job.follow():
            assert piece == b"one one\n"
            break
        await job.close_stdin()
        await job.wait()
        await box.forget(job.id)
        await box.exec("sleep 10", timeout=0.02)
        with pytest.raises(HutchError):
            await box.files.read("nowhere")
        with pytest.raises(HutchError):
            await box.exec(["/no/such/program"])
        async with hutch.box_for("{chat}", chat=hutch.session, spec={"memory_mb": 64, "disk_mb": 8}) as kept:
            await kept.exec(["true"])
            await kept.destroy()
    await hutch.events(limit=10)
    await hutch.status()
    return 20


async def mixed(url: str, key: str, number: int, until: float) -> int:
    """One client after the other, as long as the load lasts: connections come and go too."""
    chance, operations = random.Random(number), 0
    while time.monotonic() < until:
        async with Hutch(url, key=key, session=f"soak-{number}") as hutch:
            for _ in range(5):
                operations += await a_life(hutch, chance)
    return operations


async def soak(server: Server, *, clients: int, phases: int, seconds: float) -> tuple[list[Held], int]:
    """What was held after each phase, and how many operations there were. In the first there are twice as many clients:
    it fills what has a bound (answers to named operations, failures, SQLite's pages) and takes the allocators to a
    height that the others do not reach, so that what is more after them was not given back."""
    url, key = server.announcement["url"], server.key("user", "soak")
    found, operations = [], 0
    for phase in range(phases):
        until = time.monotonic() + seconds
        there = clients if phase else 2 * clients
        working = (mixed(url, key, phase * 2 * clients + number, until) for number in range(there))
        operations += sum(await asyncio.gather(*working))
        found.append(await settled(server))
    return found, operations


async def test_what_a_server_holds_does_not_grow() -> None:
    """Descriptors, threads, processes, directories and rows after each phase are those of the
    phase before; memory is judged by the proof, which has the time for it."""
    with serving(HUTCH_SERVER_RATE_PER_SEC="0") as server:
        (_, second, third), operations = await soak(server, clients=4, phases=3, seconds=2.0)
    assert operations
    assert third.without_memory() == second.without_memory()
    assert third.memory_kb < 1.2 * second.memory_kb


@pytest.mark.proof
async def test_ten_minutes() -> None:
    """What is held after the tenth minute is what was held after the second. Memory: the median of the last
    three minutes is above that of the second to fourth by no more than 2 % or 1 MB, the size of one arena of Python's
    allocator; over some 80,000 operations that is less than 13 bytes for each."""
    with serving(HUTCH_SERVER_RATE_PER_SEC="0") as server:
        found, operations = await soak(server, clients=8, phases=10, seconds=60.0)
    assert found[9].without_memory() == found[1].without_memory(), found
    early, late = (median(each.memory_kb for each in part) for part in (found[1:4], found[7:10]))
    assert late <= early + max(0.02 * early, 1024), found
    write("server-soak", minutes=10, clients=8, operations=operations, held=[asdict(each) for each in found])
