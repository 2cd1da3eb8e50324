"""Bombs on the disk of persistent boxes, which only a watchdog holds: the verdict, and what a box can do then (B17)."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from tests.providers.native.boxes import LIMITS, box, engine, out, run, until

from hutch.errors import QuotaExceeded
from hutch.model.limits import EnforcedBy
from hutch.model.results import Cause, Result
from hutch.model.spec import Retention
from hutch.providers.base import Command
from hutch.providers.guest_client.disk_overrun import MOST_HITS
from hutch.providers.guest_client.verdicts import Counters, End, Excess, decide
from hutch.providers.native import probe
from hutch.providers.native.instance import NativeInstance

pytestmark = pytest.mark.slow

SMALL = LIMITS.but(disk_mb=8)
FILES = 4096
"""What a box of that size may have, temporary or persistent."""
# Whatever ends it ends it before that: a watchdog looks now and then, also on a busy machine.
STAY = "sleep 60"
DEEP = """
import os
here = os.open(".", os.O_RDONLY)
for _ in range({depth}):
    os.mkdir("d", dir_fd=here)
    below = os.open("d", os.O_RDONLY, dir_fd=here)
    os.close(here)
    here = below
os.write(os.open("big", os.O_CREAT | os.O_WRONLY, dir_fd=here), bytes(40 << 20))
import time
time.sleep(60)
"""


@asynccontextmanager
async def kept(**changes: object) -> AsyncIterator[NativeInstance]:
    """A persistent box that must answer when the test is done with it, and leaves nothing behind."""
    async with engine() as native:
        async with box(native, retention=Retention.PERSISTENT, limits=SMALL, **changes) as made:
            yield made
            assert await out(made, "echo alive") == "alive"
            store = Path(str(made.record.data["store"]))
        assert not store.exists()


def ended(result: Result, unit: str, limit: float) -> None:
    verdict = result.verdict
    assert verdict.cause is Cause.DISK, result
    assert (verdict.unit, verdict.limit, verdict.certain) == (unit, limit, True)
    assert verdict.peak is not None and verdict.peak > limit
    assert f"disk limit of {limit:.0f} {unit} passed" in verdict.message
    assert "remove files" in verdict.remedy and "disk_mb" in verdict.remedy


async def within(made: NativeInstance) -> None:
    """What was removed is counted."""
    async with asyncio.timeout(30):
        while await made._watchdogs.still_over_disk(made.record.box_id):
            pass


async def test_the_grade_is_watchdog() -> None:
    async with engine() as native:
        assert (await native.probe()).disk_if_persistent is EnforcedBy.WATCHDOG


def test_where_nobody_can_be_watched_the_grade_is_none() -> None:
    """/proc with hidepid: an ordinary user does not see who writes."""
    blind = probe.look()._replace(blind="/proc hides the guest")
    assert probe.capabilities(blind).disk_if_persistent is EnforcedBy.NONE


def test_a_job_whose_start_was_not_seen_gets_the_likely_cause() -> None:
    """A new keeper ends what an earlier one started. Who timed out, or ended well before, did not end for this."""
    end = End(
        job="1", ended=True, exit_code=None, signal=9, timed_out=False, cancelled=True, lingering=False, shared=False,
        wall=1.0, usage=(0.0, 0.0, 0), stdout_total=0, stderr_total=0, dropped=0,
    )  # fmt: skip
    over = Counters(disk_ends=1, excess=Excess(used=40.0, limit=8.0, unit="MB"))
    answer = decide(end, before=None, after=over, limits=LIMITS)
    assert (answer.cause, answer.peak, answer.certain) == (Cause.DISK, 40.0, False)
    assert decide(end, before=over, after=over, limits=LIMITS).cause is Cause.CANCELLED
    timed_out = msgspec.structs.replace(end, timed_out=True, cancelled=False)
    assert decide(timed_out, before=Counters(), after=over, limits=LIMITS).cause is Cause.TIMEOUT


async def test_a_large_file_ends_its_writer_with_the_verdict_disk() -> None:
    async with kept() as made:
        ended(await run(made, f"head -c 40M /dev/zero > big; {STAY}", timeout_sec=60), "MB", 8)
        assert (await made.files.stat("big")).size > 8 << 20, "the files stay"
        removed = await run(made, "rm big && echo gone")
        assert removed.ok and removed.stdout == "gone\n", removed
        await within(made)
        assert (await run(made, "head -c 2M /dev/zero > small; sleep 2; cat small | wc -c")).stdout == "2097152\n"


async def test_a_job_gets_the_same_verdict() -> None:
    async with kept() as made:
        job = await made.start(Command(command=f"head -c 40M /dev/zero > big; {STAY}"))
        ended(await job.wait(60), "MB", 8)
        verdict = (await job.info()).verdict
        assert verdict is not None and verdict.cause is Cause.DISK
        await run(made, "rm big")


async def test_depth_hides_nothing() -> None:
    """Threat: data so deep that a count which holds a descriptor for each level never comes there. And it can be
    removed, however deep it is."""
    async with kept() as made:
        ended(await run(made, f"python3 -c '{DEEP.format(depth=1500)}'", timeout_sec=60), "MB", 8)


async def test_closed_directories_hide_nothing() -> None:
    """Threat: as an ordinary user Hutch has no more rights than the box, which closes its directory to its own user."""
    async with kept() as made:
        closed = "mkdir -p t/a/b && exec 3> t/a/b/big && chmod 000 t/a/b t/a && chmod 400 t"
        ended(await run(made, f"{closed} && head -c 40M /dev/zero >&3; {STAY}", timeout_sec=60), "MB", 8)
        await made._watchdogs.still_over_disk(made.record.box_id)
        modes = "stat -c %a t; chmod 700 t; stat -c %a t/a; chmod 700 t/a; stat -c %a t/a/b; chmod 700 t/a/b"
        assert await out(made, modes) == "400\n0\n0", "nobody has changed what the box had set"
        assert (await run(made, "rm -r t")).ok


@pytest.mark.parametrize("user", ["user", "root"])
async def test_a_file_without_a_name_hides_nothing(user: str, rootless: bool) -> None:
    """Threat: opened, removed, then filled; it is in no directory. What a box has in memory is not its disk."""
    if user == "root" and rootless:
        pytest.skip("only root's boxes have root guests")
    async with kept() as made:
        memory = 'import os, time\nos.write(os.memfd_create("m"), bytes(20 << 20))\n'
        memory += 'f = os.open("/dev/shm/x", os.O_CREAT | os.O_RDWR); os.unlink("/dev/shm/x")\n'
        memory += "os.write(f, bytes(20 << 20)); time.sleep(3)"
        assert (await run(made, f"python3 -c '{memory}'", user=user)).ok
        held = await run(made, f"exec 3> /tmp/big; rm /tmp/big; head -c 40M /dev/zero >&3; {STAY}", user=user)
        ended(held, "MB", 8)
        assert (await run(made, "echo freed > file && cat file", user=user)).stdout == "freed\n"


async def test_files_are_counted_too() -> None:
    """As many as a temporary box of this size may have; and a command that removes them may take its time."""
    async with kept() as made:
        many = 'import os\nfor n in range(60000): os.close(os.open(f"f{n}", os.O_CREAT))\nimport time; time.sleep(60)'
        ended(await run(made, f"python3 -c '{many}'", timeout_sec=60), "files", FILES)
        slow = "import os, time\nfor name in os.listdir(): os.unlink(name); time.sleep(0.0005)"
        assert (await run(made, f"python3 -c '{slow}'", timeout_sec=60)).ok
        assert await made.files.list(".") == []


async def test_a_command_that_keeps_writing_is_ended_again_and_at_last_not_started() -> None:
    """Threat: each command over the limit writes a little more, and many of them fill the disk."""
    async with kept() as made:
        for number in range(MOST_HITS + 1):
            ended(await run(made, f"head -c 20M /dev/zero > big{number}; {STAY}", timeout_sec=60), "MB", 8)
        refused = await run(made, "touch never")
        assert refused.verdict.cause is Cause.DISK and "not started" in refused.verdict.message
        with pytest.raises(QuotaExceeded, match="over its disk limit"):
            await made.start(Command(command="touch never"))
        with pytest.raises(QuotaExceeded, match=r"over its disk limit .*of 8 MB"):
            await made.files.write("never", b"1")
        names = [info.path.rpartition("/")[2] for info in await made.files.list(".")]
        assert "never" not in names
        for name in names:
            await made.files.remove(name)
        assert (await run(made, "echo back > again && cat again")).stdout == "back\n"


async def test_operations_on_files_are_counted() -> None:
    """They are the guest's own work: nobody can be ended for them, but the next one is refused, and so is a stream."""
    async with kept() as made:

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield bytes(1 << 20)
                await asyncio.sleep(0.01)

        with pytest.raises(QuotaExceeded):
            async with asyncio.timeout(60):
                await made.files.write("stream", endless())
        await within(made)
        await made.files.write("big", bytes(20 << 20))
        watchdogs, box_id = made._watchdogs, made.record.box_id
        await until(lambda: watchdogs.over_disk(box_id) is not None, "a count")
        with pytest.raises(QuotaExceeded):
            await made.files.write("more", b"1")
        assert (await run(made, "rm big")).ok
        await made.files.write("more", b"1")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's boxes have root guests")
async def test_the_boxes_root_is_held_too() -> None:
    """His commands run below a root guest, which is no descendant of the guest."""
    async with kept() as made:
        assert await out(made, "id -u", user="root") == "0"
        bomb = f"sleep 2; head -c 40M /dev/zero > /tmp/big; {STAY}"
        ended(await run(made, bomb, user="root", timeout_sec=60), "MB", 8)
        assert (await run(made, "rm /tmp/big", user="root")).ok


async def test_a_box_that_was_over_its_limit_comes_back_and_can_be_emptied() -> None:
    async with engine() as native:
        async with box(native, retention=Retention.PERSISTENT, limits=SMALL) as made:
            ended(await run(made, f"head -c 40M /dev/zero > big; {STAY}", timeout_sec=60), "MB", 8)
            await made.close()
            again = await native.attach(made.record, made.spec)
            assert (await run(again, "sleep 1; rm big; sleep 1; echo gone", timeout_sec=60)).stdout == "gone\n"
            await again.close()
