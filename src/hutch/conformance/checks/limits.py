"""Limits that bite, verdicts that say so, and boxes that go on afterwards (B4, lesson 24)."""

import asyncio
import signal

from hutch.conformance.claims import holds, same
from hutch.conformance.registry import check
from hutch.conformance.workbench import Workbench
from hutch.errors import HutchError
from hutch.model.limits import EnforcedBy, Limits
from hutch.model.results import Cause, Result

HOG = ("tail", "/dev/zero")
"""A command that grows without end: it keeps the last line, and there is never a newline."""
FORKS = "n=0; while [ $n -lt 100 ]; do n=$((n+1)); sleep 30 & done; echo all"


def _explains(result: Result, what: str) -> None:
    """Fail unless a verdict about a limit carries the limit, a message and a remedy."""
    verdict = result.verdict
    holds(verdict.message and verdict.remedy, f"the verdict about {what} lacks message or remedy: {verdict}")
    holds(verdict.limit, f"the verdict about {what} does not name the limit")


@check("limits", needs="grades.memory_mb")
async def check_memory(bench: Workbench) -> None:
    """A command that needs more memory than the box has is killed with the verdict oom; the box keeps running."""
    async with bench.box(memory_mb=64, disk_mb=16) as box:
        result = await bench.run(box, HOG)
        same((result.verdict.cause, result.exit_code), (Cause.OOM, 137), "cause and exit code")
        _explains(result, "memory")
        await bench.answers(box)


@check("limits", needs="grades.memory_mb")
async def check_memory_enough(bench: Workbench) -> None:
    """Memory within the limit can be used."""
    async with bench.box(memory_mb=192) as box:
        held = await bench.output(box, "head -c 64000000 /dev/zero | tail | wc -c")
        same(held, b"64000000\n", "bytes held in memory")


@check("limits", needs="grades.memory_mb")
async def check_memory_of_the_sum(bench: Workbench) -> None:
    """The limit is the box's: several commands that each fit do not fit together, and not all of them survive."""
    async with bench.box(memory_mb=96, disk_mb=16) as box:
        script = "head -c 50000000 /dev/zero | tail | (sleep 1; wc -c)"
        results = await asyncio.gather(*(bench.run(box, ("sh", "-c", script)) for _ in range(4)))
        whole = [result.stdout_bytes for result in results].count(b"50000000\n")
        holds(whole < 4, "four commands of 50 MB each ran at once in a box of 96 MB")
        await bench.answers(box)


@check("limits", needs="grades.memory_mb")
async def check_innocent(bench: Workbench) -> None:
    """A later command that fails for its own reasons is not blamed on an earlier one's limit."""
    async with bench.box(memory_mb=64, disk_mb=16) as box:
        await bench.run(box, HOG)
        result = await bench.run(box, ("sh", "-c", "exit 3"))
        same((result.verdict.cause, result.exit_code), (Cause.EXIT, 3), "cause and exit code of the next command")
        result = await bench.run(box, ("sh", "-c", "kill -9 $$"))
        same(result.verdict.cause, Cause.SIGNAL, "cause of a command that killed itself")


@check("limits", needs="grades.pids")
async def check_pids(bench: Workbench) -> None:
    """A command that starts too many processes fails with the verdict pids; the box keeps running."""
    async with bench.box(pids=24) as box:
        result = await bench.run(box, ("sh", "-c", FORKS + "; exit 1"))
        holds(b"all" not in result.stdout_bytes or result.verdict.cause is Cause.PIDS, "100 processes in a box of 24")
        same(result.verdict.cause, Cause.PIDS, "cause")
        _explains(result, "pids")


@check("limits", needs="grades.pids")
async def check_pids_recover(bench: Workbench) -> None:
    """When the processes of a fork bomb are gone, the box has room for commands again."""
    async with bench.box(pids=24) as box:
        # A shell that cannot fork ends, so the bomb is a child of one that waits, and all are of one group.
        bomb = await bench.start(box, ("sh", "-c", f"({FORKS}); echo full; read line"))
        await bench.read_until(bomb, b"full\n")
        await bomb.signal(signal.SIGKILL)

        async def works() -> bool:
            try:
                return (await bench.run(box, ("sh", "-c", "echo $(echo nested)"))).stdout_bytes == b"nested\n"
            except HutchError:
                return False

        await bench.until(works, "the box answering after a fork bomb")


@check("limits", needs="grades.disk_mb")
async def check_disk(bench: Workbench) -> None:
    """Writing more than the disk limit fails with the verdict disk; removing it makes room again."""
    async with bench.box(disk_mb=16, memory_mb=256) as box:
        result = await bench.run(box, ("sh", "-c", "head -c 40000000 /dev/zero >big; sync; sleep 1; exec cat big"),
                                 keep_output=100)  # fmt: skip
        holds(result.stdout_total < 40_000_000, "40 MB were written in a box of 16 MB")
        result = await bench.run(box, "head -c 40000000 /dev/zero >big2")
        same(result.verdict.cause, Cause.DISK, "cause")
        _explains(result, "disk")
        await bench.output(box, "rm -f big big2; head -c 4000000 /dev/zero >fits")


@check("limits", needs="grades.disk_mb")
async def check_disk_everywhere(bench: Workbench) -> None:
    """The disk limit counts everything the box writes: /tmp and the workspace together."""
    async with bench.box(disk_mb=16, memory_mb=256) as box:
        result = await bench.run(box, "head -c 11000000 /dev/zero >/tmp/a && head -c 11000000 /dev/zero >/workspace/b")
        holds(result.exit_code != 0, "22 MB were written to /tmp and /workspace in a box of 16 MB")


@check("limits", needs="grades.open_files")
async def check_open_files(bench: Workbench) -> None:
    """A process may open as many files as the limit says, and cannot raise it."""
    async with bench.box(open_files=64) as box:
        same(await bench.output(box, ("sh", "-c", "ulimit -Sn; ulimit -Hn")), b"64\n64\n", "soft and hard limit")
        result = await bench.run(box, ("sh", "-c", "ulimit -n 65"))
        holds(result.exit_code != 0, "the limit could be raised")


@check("limits", needs="grades.cpus")
async def check_cpus(bench: Workbench) -> None:
    """Busy processes get the share of the processors that the box has, and no more, however many they are."""
    async with bench.box(cpus=0.2) as box:
        loop = asyncio.get_running_loop()
        before, started = await box.usage(), loop.time()
        await bench.run(box, ("sh", "-c", "for i in 1 2 3 4; do while :; do :; done & done; wait"), timeout_sec=2.0)
        after, passed = await box.usage(), loop.time() - started
        spent = after.cpu_user_sec + after.cpu_system_sec - before.cpu_user_sec - before.cpu_system_sec
        holds(spent > 0.02, f"the box's usage shows {spent} s of processor time for four busy loops")
        # A watchdog checks now and then, so it lets through what the kernel's quota would not.
        slack = 0.1 if bench.capabilities.grades.cpus is EnforcedBy.CGROUP else 0.4
        holds(spent < 0.2 * passed * 1.5 + slack, f"{spent:.2f} s of processor time in {passed:.2f} s with cpus=0.2")


@check("limits")
async def check_box_usage(bench: Workbench) -> None:
    """The box's usage grows with what its commands do, and does not shrink when they end."""
    async with bench.box() as box:
        before = await box.usage()
        await bench.output(box, "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done")
        after = await box.usage()
        spent = after.cpu_user_sec + after.cpu_system_sec - before.cpu_user_sec - before.cpu_system_sec
        holds(spent > 0.02, f"a busy loop added {spent} s to the box's processor time")
        holds(after.wall_sec >= before.wall_sec, "the box's age went backwards")
        peak = after.box_memory_peak_mb
        holds(peak is None or 0.1 < peak < 100_000, f"the box's peak memory is {peak} MB")


@check("limits", needs="grades.open_files grades.pids")
async def check_change(bench: Workbench) -> None:
    """Changed limits hold for the live box, except those whose names are returned: these stay as they were."""
    # The box has memory for all of them from the start, because not every engine can give a live box more.
    async with bench.box(memory_mb=192, disk_mb=16, pids=16, open_files=64) as box:
        wider = bench.spec(memory_mb=256, disk_mb=16, pids=200, open_files=128).limits
        unapplied = await box.change_limits(wider)
        holds(set(unapplied) <= set(Limits.__struct_fields__), f"returned names are no limits: {unapplied}")
        opened = await bench.output(box, ("sh", "-c", "ulimit -n"))
        same(opened, b"64\n" if "open_files" in unapplied else b"128\n", f"open files (unapplied: {unapplied})")
        forked = await bench.run(box, ("sh", "-c", FORKS))
        what = f"100 processes fit (unapplied: {unapplied}; it ended with {forked.verdict.cause} {forked.exit_code})"
        same(b"all" in forked.stdout_bytes, "pids" not in unapplied, what)
