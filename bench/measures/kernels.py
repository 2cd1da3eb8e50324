"""The first pandas result in a fresh box, beside a cold `import pandas`; and the memory of 50 kernels."""

import asyncio
import subprocess
import sys
from time import perf_counter

from bench.context import Context
from bench.interleave import Candidate, blocking, interleave
from bench.numbers import Number, Summary, times_faster
from hutch.keeper.embedded import Hutch
from hutch.kernels import environment

COLD = 'python3 -c "import pandas"'
STATEMENT = "import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': [3, 4]}).sum()"
KERNELS = 50


async def kernels(context: Context) -> list[Number]:
    """The environment is the bench's own, so that both sides import the same pandas."""
    await asyncio.to_thread(environment.prepare, context.state, python=sys.executable)
    async with context.hutch() as hutch:
        samples = await interleave(
            [
                Candidate("hutch", lambda: _first_result(hutch), context.count(100)),
                Candidate(COLD, blocking(_cold_import), context.count(40)),
            ]
        )
        megabytes = await _memory_of_kernels(hutch, context.count(KERNELS))
    ours, cold = (Summary.of(samples.milliseconds[name]) for name in ("hutch", COLD))
    goals = (times_faster(20, COLD),)
    return [
        Number("kernel", "first pandas result in a fresh box", "ms", ours, {COLD: cold}, goals),
        Number("kernel_memory", "memory of each of 50 kernels at once", "MB", Summary.of([megabytes])),
    ]


async def _first_result(hutch: Hutch) -> float:
    """The seconds from the call to the result, in a box that was made just before."""
    async with hutch.box(memory_mb=512) as box:
        start = perf_counter()
        result = await box.python(STATEMENT)
        seconds = perf_counter() - start
    if not result.ok:
        raise RuntimeError(f"the kernel failed: {result.error}")
    return seconds


def _cold_import() -> None:
    subprocess.run([sys.executable, "-c", "import pandas"], check=True)


async def _memory_of_kernels(hutch: Hutch, count: int) -> float:
    """How much less memory the machine has available, for each kernel that has run the statement."""
    boxes = []
    try:
        before = _available_kb()
        for _ in range(count):
            box = await hutch.create(memory_mb=512)
            boxes.append(box)
            await box.python(STATEMENT)
        return max(0.0, (before - _available_kb()) / 1024 / count)
    finally:
        for box in boxes:
            await box.destroy()


def _available_kb() -> int:
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
