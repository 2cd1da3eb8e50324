"""The first pandas result in a fresh box, beside a cold `import pandas`; 50 kernels at once; and a live fork."""

import asyncio
import subprocess
import sys
from time import perf_counter
from typing import NamedTuple

from bench.context import Context
from bench.interleave import Candidate, blocking, interleave
from bench.numbers import Number, Summary, times_faster
from hutch.keeper.embedded import Hutch
from hutch.kernels import environment

COLD = 'python3 -c "import pandas"'
STATEMENT = "import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': [3, 4]}).sum()"
SHARE = "print(next(line.split()[1] for line in open('/proc/self/smaps_rollup') if line.startswith('Pss:')))"
KERNELS = 50
PAUSE_SECONDS = 0.05


async def kernels(context: Context) -> list[Number]:
    """The environment is the bench's own, so that both sides import the same pandas."""
    await asyncio.to_thread(environment.prepare, context.state, python=sys.executable)
    async with context.hutch() as hutch:
        samples = await interleave(
            [
                Candidate("tight", lambda: _first_result(hutch), context.count(100)),
                Candidate("spaced", lambda: _after_a_pause(hutch), context.count(100)),
                Candidate(COLD, blocking(_cold_import), context.count(40)),
            ]
        )
        crowd = await _crowd(hutch, context.count(KERNELS))
        forks = await _live_forks(hutch, context.count(20))
    tight, spaced, cold = (Summary.of(samples.milliseconds[name]) for name in ("tight", "spaced", COLD))
    goals = (times_faster(20, COLD),)
    return [
        Number("kernel", "first pandas result in a fresh box", "ms", tight, {COLD: cold}, goals),
        Number("kernel_spaced", "the same, 50 ms after the box was made", "ms", spaced, {COLD: cold}, goals),
        Number("kernel_memory", "memory of the machine for each of 50 kernels at once", "MB", Summary.of([crowd.used])),
        Number("kernel_pss", "share of each of 50 kernels at once (PSS)", "MB", Summary.of(crowd.shares)),
        Number("kernel_crowd", "50 boxes at once: until each has its first pandas result", "ms",
               Summary.of([crowd.seconds * 1000])),
        Number("kernel_fork", "live fork of a kernel with pandas, until the fork's first result", "ms",
               Summary.of([seconds * 1000 for seconds in forks])),
    ]  # fmt: skip


async def _first_result(hutch: Hutch, pause: float = 0.0) -> float:
    """The seconds from the call to the result, in a box that was made just before."""
    async with hutch.box(memory_mb=512) as box:
        await asyncio.sleep(pause)
        start = perf_counter()
        result = await box.python(STATEMENT)
        seconds = perf_counter() - start
    if not result.ok:
        raise RuntimeError(f"the kernel failed: {result.error}")
    return seconds


async def _after_a_pause(hutch: Hutch) -> float:
    """The same, when the last box is gone and the template has its next fork in reserve."""
    return await _first_result(hutch, PAUSE_SECONDS)


def _cold_import() -> None:
    subprocess.run([sys.executable, "-c", "import pandas"], check=True)


class Crowd(NamedTuple):
    """Many kernels that live at once, in a box each."""

    seconds: float
    """From the first call until all have answered."""
    used: float
    """How much less memory the machine has available, for each kernel with its box, in MB."""
    shares: list[float]
    """The proportional set size of each kernel, in MB: pages that it shares count in part."""


async def _crowd(hutch: Hutch, count: int) -> Crowd:
    boxes = []
    try:
        await _first_result(hutch)  # The template is there, and counts for none of them.
        before = _available_kb()
        for _ in range(count):
            boxes.append(await hutch.create(memory_mb=512))
        start = perf_counter()
        results = await asyncio.gather(*(box.python(STATEMENT) for box in boxes))
        seconds = perf_counter() - start
        if not all(result.ok for result in results):
            raise RuntimeError(f"a kernel failed: {next(result.error for result in results if result.error)}")
        used = max(0.0, (before - _available_kb()) / 1024 / count)
        shares = [int((await box.python(SHARE)).stdout) / 1024 for box in boxes]
        return Crowd(seconds, used, shares)
    finally:
        for box in boxes:
            await box.destroy()


async def _live_forks(hutch: Hutch, count: int) -> list[float]:
    """The seconds from the call of `fork` to the first result in the fork."""
    seconds = []
    async with hutch.box(memory_mb=512) as box:
        await box.python(f"{STATEMENT}\nkept = pd.DataFrame({{'a': range(10_000)}})")
        for _ in range(count):
            start = perf_counter()
            (fork,) = await box.fork(kernel=True)
            result = await fork.python("int(kept.a.sum())")
            seconds.append(perf_counter() - start)
            await fork.destroy()
            if result.text != "49995000":
                raise RuntimeError(f"the fork has lost its variables: {result}")
    return seconds


def _available_kb() -> int:
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
