"""Create, use, destroy, again and again: what the machine holds does not grow."""

import asyncio
import os
import signal
import subprocess
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from tests import leaks
from tests.leaks import Holdings, holdings
from tests.proofs import write

from hutch.errors import HutchError
from hutch.keeper.embedded import Hutch


async def a_round(hutch: Hutch, number: int) -> None:
    """Mostly a plain life; now and then one of the less plain ends."""
    box = await hutch.create(memory_mb=64, disk_mb=8)
    await box.exec(["true"])
    if number % 5 == 1:
        await box.files.write("a/b/c.txt", b"x" * 10_000)
        await box.exec("cat a/b/c.txt | wc -c; exit 3")
    if number % 5 == 2:
        job = await box.start("cat; sleep 100")
        await job.write("hello")
    if number % 5 == 3:
        async for _ in box.stream("seq 1000"):
            pass
    if number % 7 == 4:
        await box.exec("sleep 5", timeout=0.01)
    if number % 11 == 5:
        creating = asyncio.create_task(hutch.create())
        await asyncio.sleep(0.0005 * (number % 7))
        creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)
        for record in await hutch.boxes():
            if record.id != box.id:
                await hutch.destroy(record.id)
    if number % 13 == 6:
        with pytest.raises(HutchError):
            await hutch.create(image="dir:/no/such/image")
    await box.destroy()


async def settled(keeper: str, *directories: Path) -> Holdings:
    """The same twice in a row: the spawner's reserve of half-made boxes and the kernel's cleanup have come to rest."""
    before, deadline = holdings(keeper, *directories), time.monotonic() + 60
    while time.monotonic() < deadline:
        await asyncio.sleep(0.3)
        now = holdings(keeper, *directories)
        if now.without_memory() == before.without_memory():
            return now
        before = now
    return before


async def run(first: int, last: int) -> tuple[Holdings, Holdings]:
    directories = (Path(os.environ["HUTCH_RUN_DIR"]), Path(os.environ["HUTCH_STATE_DIR"]))
    async with Hutch() as hutch:
        for number in range(first):
            await a_round(hutch, number)
        early = await settled(hutch._keeper.id, *directories)
        for number in range(first, last):
            await a_round(hutch, number)
        late = await settled(hutch._keeper.id, *directories)
    return early, late


def test_an_orphan_is_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is left by a program that has ended is found: tests rely on it that nothing of theirs remains."""
    monkeypatch.setattr(leaks, "TIMEOUT", 0.2)
    left = 0
    with pytest.raises(AssertionError, match="left behind"), leaks.leaving_no_trace():
        done = subprocess.run(["sh", "-c", "sleep 600 >&- 2>&- & echo $!"], capture_output=True, check=True)
        left = int(done.stdout)
    os.kill(left, signal.SIGKILL)
    assert os.waitpid(left, 0)[0] == left


@pytest.mark.alone
async def test_rounds_leave_nothing() -> None:
    early, late = await run(40, 120)
    assert late.without_memory() == early.without_memory()


@pytest.mark.alone
async def test_closing_leaves_nothing_at_all() -> None:
    """After `close` no process, mount, cgroup, directory or descriptor of ours is there."""
    directories = (Path(os.environ["HUTCH_RUN_DIR"]),)
    async with Hutch() as hutch, hutch.box() as box:
        await box.exec(["true"])
    before = await settled(hutch._keeper.id, *directories)
    assert before.cgroups == 0
    async with Hutch() as hutch:
        boxes = await asyncio.gather(*(hutch.create() for _ in range(10)))
        await asyncio.gather(*(box.exec(["true"]) for box in boxes))
        await boxes[0].start("sleep 100")
    after = await settled(hutch._keeper.id, *directories)
    assert after.without_memory() == before.without_memory()


@pytest.mark.alone
@pytest.mark.proof
@pytest.mark.timeout(1800)
async def test_rounds_200_to_2000_leave_equal_counts_and_memory() -> None:
    early, late = await run(200, 2000)
    write("native-leaks", rounds=[200, 2000], after_200=asdict(early), after_2000=asdict(late))
    assert late.without_memory() == early.without_memory()
    assert late.memory_kb <= early.memory_kb * 1.02
