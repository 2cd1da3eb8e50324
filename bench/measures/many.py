"""Many boxes: 100 at once, as many as possible for some seconds, and what 1,000 idle ones cost in memory."""

import asyncio
import gc
import os
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from bench.numbers import Number, Summary, at_least, at_most
from bench.peers.engine import Engine
from bench.peers.errors import PeerFailed
from bench.setting import Setting, available_memory, settled_memory
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.embedded import Hutch

BURST = 100
RATE_SECONDS = 8.0
RATE_WORKERS = 8
IDLE = 1000
IDLE_CONTAINERS = 40
MB = 1 << 20
ROOM = 6 << 30
"""Memory that must be available before 1,000 boxes are made: three times what they may cost."""


async def burst(setting: Setting) -> list[Number]:
    """Seconds from the call until the last of 100 boxes has answered."""
    count, taken = setting.count(BURST), []
    async with setting.hutch() as hutch:
        for _ in range(setting.count(12) + 1):
            start = perf_counter()
            boxes = await asyncio.gather(*(hutch.create() for _ in range(count)))
            taken.append(perf_counter() - start)
            await _destroy(boxes)
    peers = _of_docker(setting, lambda docker: _burst_of(docker, count))
    ours = Summary.of(taken[1:])
    return [Number("burst", f"{count} boxes at once", "s", ours, peers, (at_most(0.5, "s"),))]


async def rate(setting: Setting) -> list[Number]:
    """Boxes a second, created and destroyed, by a few callers at once; each sample is one second."""
    seconds = RATE_SECONDS if not setting.brief else 1.0
    async with setting.hutch() as hutch:
        await _destroy([await hutch.create() for _ in range(RATE_WORKERS)])
        done: list[float] = []
        start = perf_counter()

        async def work() -> None:
            while perf_counter() - start < seconds:
                box = await hutch.create()
                await box.destroy()
                done.append(perf_counter() - start)

        await asyncio.gather(*(work() for _ in range(RATE_WORKERS)))
    peers = _of_docker(
        setting, lambda docker: _rate_of(lambda: docker.remove(docker.create()), seconds), more_is_better=True
    )
    if argv := setting.peers.bwrap:
        # The least that the machine needs for a sandbox: no limits, no record, no guest, but each runs `true`.
        sandboxes = _rate_of(lambda: _sandbox(argv), seconds)
        peers["bwrap"] = Summary.of(sandboxes, more_is_better=True)
    ours = Summary.of(_per_second(done, seconds), more_is_better=True)
    goals = (at_least(250, "boxes/s"),)
    what = f"created and destroyed, for {seconds:g} s"
    return [Number("rate", what, "boxes/s", ours, peers, goals, more_is_better=True)]


async def idle(setting: Setting) -> list[Number]:
    """How far MemAvailable falls for each idle box that has run one command: kernel memory included."""
    count = setting.count(IDLE)
    if (available := available_memory()) < ROOM:
        raise MemoryError(f"{available / MB:.0f} MB are available; this bench starts with no less than {ROOM / MB:.0f}")
    _raise_open_files()
    peers = _of_docker(setting, _idle_of)
    async with setting.hutch() as hutch:
        await _destroy([await _used(hutch) for _ in range(20)])
        gc.collect()
        before = settled_memory()
        boxes: list[BoxHandle] = []
        try:
            while len(boxes) < count:
                boxes += await asyncio.gather(*(_used(hutch) for _ in range(min(20, count - len(boxes)))))
            each = (before - settled_memory()) / count / MB
        finally:
            await _destroy(boxes)
    return [Number("idle", f"{count} idle boxes, each", "MB", Summary(each, each, count), peers, (at_most(2, "MB"),))]


async def _used(hutch: Hutch) -> BoxHandle:
    box = await hutch.create()
    result = await box.exec(["true"])
    assert result.exit_code == 0
    return box


async def _destroy(boxes: list[BoxHandle]) -> None:
    for start in range(0, len(boxes), 20):
        await asyncio.gather(*(box.destroy() for box in boxes[start : start + 20]))


def _per_second(done: list[float], seconds: float) -> list[float]:
    """How many ended in each whole second."""
    return [float(sum(second <= each < second + 1 for each in done)) for second in range(int(seconds))]


def _raise_open_files() -> None:
    """Each box is a connection; many systems give a process only 1,024 descriptors until it asks for more."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


# --- the same with others ---------------------------------------------------------------------------------------


def _of_docker(
    setting: Setting, measure: Callable[[Engine], list[float]], *, more_is_better: bool = False
) -> dict[str, Summary]:
    docker = setting.peers.engines.get("docker")
    if docker is None:
        return {}
    try:
        return {"docker": Summary.of(measure(docker), more_is_better=more_is_better)}
    except PeerFailed as error:
        setting.peers.missing["docker"] = str(error)
        return {}
    finally:
        docker.remove_all()


def _burst_of(docker: Engine, count: int) -> list[float]:
    with ThreadPoolExecutor(count) as threads:
        start = perf_counter()
        list(threads.map(lambda _: docker.create(), range(count)))
        return [perf_counter() - start]


def _sandbox(argv: list[str]) -> None:
    _, status = os.waitpid(os.posix_spawn(argv[0], argv, os.environ), 0)
    if status != 0:
        raise PeerFailed(f"bwrap ended with status {status}")


def _rate_of(once: Callable[[], None], seconds: float) -> list[float]:
    start = perf_counter()
    done: list[float] = []

    def work(_: int) -> None:
        while perf_counter() - start < seconds:
            once()
            done.append(perf_counter() - start)

    with ThreadPoolExecutor(RATE_WORKERS) as threads:
        list(threads.map(work, range(RATE_WORKERS)))
    return _per_second(done, seconds)


def _idle_of(docker: Engine) -> list[float]:
    before = settled_memory()
    for _ in range(IDLE_CONTAINERS):
        docker.first_command()
    return [(before - settled_memory()) / IDLE_CONTAINERS / MB]
