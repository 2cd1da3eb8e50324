"""Many boxes: 100 at once, as many as possible for some seconds, 1,000 idle ones, and a keeper that holds 2,000."""

import asyncio
import gc
import os
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import perf_counter

from bench.context import Context, available_memory, settled_memory
from bench.interleave import Candidate, Samples, interleave
from bench.measures.create import first_command
from bench.numbers import Number, Summary, at_least_times, at_most_memory, at_most_times
from bench.peers.engine import Engine
from bench.peers.errors import PeerFailed
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.embedded import Hutch

BURST = 100
SINGLES = 10
"""Single creations after each burst, which it is compared with."""
RATE_SECONDS = 2.0
RATE_TURNS = 4
RATE_WORKERS = 8
IDLE = 1000
IDLE_CONTAINERS = 40
PAGE = 50
"""Boxes that a page of a list shows."""
CROWD = (0, 500, 1000, 2000)
"""Numbers of idle boxes in the keeper at which creation and exec are measured."""
MB = 1 << 20
IDLE_MEMORY = 6 << 30
CROWD_MEMORY = 10 << 30
"""Memory that must be available before the idle boxes are made: more than twice what they may need."""
ONE = "one create"
EMPTY = "empty keeper"
OTHER = "another, empty"


async def burst(context: Context) -> list[Number]:
    """Seconds from the call until the last of 100 boxes has answered, beside the seconds of one creation."""
    count = context.count(BURST)
    taken: list[float] = []
    singles: list[float] = []
    async with context.hutch() as hutch:
        for _ in range(context.count(12) + 1):
            start = perf_counter()
            boxes = await asyncio.gather(*(hutch.create() for _ in range(count)))
            taken.append(perf_counter() - start)
            await _destroy(boxes)
            for _ in range(SINGLES):
                start = perf_counter()
                box = await hutch.create()
                singles.append(perf_counter() - start)
                await box.destroy()
    peers = {ONE: Summary.of(singles)} | _of_docker(context, lambda docker: _burst_of(docker, count))
    ours = Summary.of(taken[1:])
    return [Number("burst", f"{count} boxes at once", "s", ours, peers, (at_most_times(80, ONE),))]


async def rate(context: Context) -> list[Number]:
    """Boxes a second, created and destroyed by a few callers at once; each sample is one turn of some seconds."""
    seconds = RATE_SECONDS if not context.brief else 0.5
    sampled: dict[str, list[float]] = {"hutch": []}
    docker, argv = context.peers.engines.get("docker"), context.peers.bwrap
    async with context.hutch() as hutch:
        await _destroy([await hutch.create() for _ in range(RATE_WORKERS)])
        for _ in range(RATE_TURNS):
            sampled["hutch"].append(await _own_rate(hutch, seconds))
            if docker is not None and "docker" not in context.peers.missing:
                try:
                    sampled.setdefault("docker", []).append(_rate_of(lambda: docker.remove(docker.create()), seconds))
                except PeerFailed as error:
                    context.peers.missing["docker"] = str(error)
                    sampled.pop("docker", None)
                finally:
                    docker.remove_all()
            if argv:
                # The least that the machine needs for a sandbox: no limits, no record, no guest, but each runs `true`.
                sampled.setdefault("bwrap", []).append(_rate_of(lambda: _sandbox(argv), seconds))
    peers = {name: Summary.of(values, more_is_better=True) for name, values in sampled.items()}
    ours = peers.pop("hutch")
    goals = (at_least_times(0.8, "bwrap"), at_least_times(30, "docker"))
    return [Number("rate", "created and destroyed", "boxes/s", ours, peers, goals, more_is_better=True)]


async def _own_rate(hutch: Hutch, seconds: float) -> float:
    start, done = perf_counter(), 0

    async def work() -> None:
        nonlocal done
        while perf_counter() - start < seconds:
            box = await hutch.create()
            await box.destroy()
            done += 1

    await asyncio.gather(*(work() for _ in range(RATE_WORKERS)))
    return done / (perf_counter() - start)


async def idle(context: Context) -> list[Number]:
    """How far MemAvailable falls for each idle box that has run one command: kernel memory included."""
    count = context.count(IDLE)
    _require_memory(IDLE_MEMORY)
    _raise_open_files()
    peers = _of_docker(context, _idle_of)
    async with context.hutch() as hutch:
        await _destroy([await _used(hutch) for _ in range(20)])
        gc.collect()
        before = settled_memory()
        boxes: list[BoxHandle] = []
        try:
            await _fill(hutch, boxes, count)
            each = (before - settled_memory()) / count / MB
        finally:
            await _destroy(boxes)
    ours = Summary(each, each, count)
    return [Number("idle", f"{count} idle boxes, each", "MB", ours, peers, (at_most_memory(2.1),))]


async def crowd(context: Context) -> list[Number]:
    """Creation and exec in a keeper that holds 500, 1,000 and 2,000 idle boxes, beside the same keeper without any.

    The empty keeper is measured before and after. A second keeper, which stays empty, is measured in turns with the
    crowded one: if both are slow, it is the machine that is.
    """
    steps = tuple(count // (50 if context.brief else 1) for count in CROWD)
    _require_memory(CROWD_MEMORY)
    _raise_open_files()
    creates: dict[str, list[float]] = {}
    execs: dict[str, list[float]] = {}
    lists: dict[str, list[float]] = {}
    boxes: list[BoxHandle] = []
    other_context = replace(context, state=context.state / "other", run=context.run / "other")
    async with context.hutch() as hutch, other_context.hutch() as other:
        try:
            for count in steps:
                await _fill(hutch, boxes, count)
                name = f"{count:,} idle" if count else EMPTY
                for taken, samples in zip((creates, execs), await _crowd_samples(context, hutch, other), strict=True):
                    taken[name] = samples.milliseconds["crowded"]
                    taken[OTHER] = samples.milliseconds["other"]
                if count:
                    lists[f"{count:,} idle"] = [await _first_page(hutch) for _ in range(context.count(40))]
        finally:
            await _destroy(boxes)
        for taken, samples in zip((creates, execs), await _crowd_samples(context, hutch, other), strict=True):
            taken[EMPTY] += samples.milliseconds["crowded"]
    return [
        _crowded("crowd_create", "create to first command", creates, f"{steps[-1]:,} idle", 1.5),
        _crowded("crowd_exec", "exec `true`", execs, f"{steps[-1]:,} idle", 1.3),
        _listed(lists, f"{steps[1]:,} idle", f"{steps[-1]:,} idle"),
    ]


async def _first_page(hutch: Hutch) -> float:
    """Milliseconds for the first 50 boxes of the list."""
    start = perf_counter()
    shown = await hutch.boxes(limit=PAGE)
    taken = perf_counter() - start
    assert len(shown) <= PAGE
    return taken * 1000


def _listed(lists: dict[str, list[float]], fewest: str, most: str) -> Number:
    peers = {each: Summary.of(values) for each, values in lists.items() if each != most}
    title = f"the first {PAGE} of {most} boxes in a list"
    return Number("crowd_list", title, "ms", Summary.of(lists[most]), peers, (at_most_times(1.5, fewest),))


async def _crowd_samples(context: Context, hutch: Hutch, other: Hutch) -> tuple[Samples, Samples]:
    """Creations and execs, of both keepers in turns."""
    creates = await interleave(
        [
            Candidate("crowded", lambda: first_command(hutch), context.count(100)),
            Candidate("other", lambda: first_command(other), context.count(100)),
        ]
    )
    async with hutch.box() as box, other.box() as other_box:
        execs = await interleave(
            [
                Candidate("crowded", lambda: _exec(box), context.count(200)),
                Candidate("other", lambda: _exec(other_box), context.count(200)),
            ]
        )
    return creates, execs


def _crowded(name: str, what: str, taken: dict[str, list[float]], most: str, factor: float) -> Number:
    peers = {each: Summary.of(values) for each, values in taken.items() if each != most}
    title = f"{what} beside {most} boxes"
    return Number(name, title, "ms", Summary.of(taken[most]), peers, (at_most_times(factor, EMPTY),))


async def _exec(box: BoxHandle) -> float:
    start = perf_counter()
    result = await box.exec(["true"])
    taken = perf_counter() - start
    assert result.exit_code == 0
    return taken


async def _used(hutch: Hutch) -> BoxHandle:
    box = await hutch.create()
    await _exec(box)
    return box


async def _fill(hutch: Hutch, boxes: list[BoxHandle], count: int) -> None:
    """Create boxes, each with one command, until there are `count`."""
    while len(boxes) < count:
        boxes += await asyncio.gather(*(_used(hutch) for _ in range(min(20, count - len(boxes)))))


async def _destroy(boxes: list[BoxHandle]) -> None:
    for start in range(0, len(boxes), 20):
        await asyncio.gather(*(box.destroy() for box in boxes[start : start + 20]))


def _require_memory(needed: int) -> None:
    if (available := available_memory()) < needed:
        raise MemoryError(f"{available / MB:.0f} MB are available; this bench needs {needed / MB:.0f} MB to start")


def _raise_open_files() -> None:
    """Each box is a connection; many systems give a process only 1,024 descriptors until it asks for more."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


# --- the same with others ---------------------------------------------------------------------------------------


def _of_docker(context: Context, measure: Callable[[Engine], list[float]]) -> dict[str, Summary]:
    docker = context.peers.engines.get("docker")
    if docker is None:
        return {}
    try:
        return {"docker": Summary.of(measure(docker))}
    except PeerFailed as error:
        context.peers.missing["docker"] = str(error)
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


def _rate_of(once: Callable[[], None], seconds: float) -> float:
    start = perf_counter()

    def work(_: int) -> int:
        done = 0
        while perf_counter() - start < seconds:
            once()
            done += 1
        return done

    with ThreadPoolExecutor(RATE_WORKERS) as threads:
        done = sum(threads.map(work, range(RATE_WORKERS)))
    return done / (perf_counter() - start)


def _idle_of(docker: Engine) -> list[float]:
    before = settled_memory()
    for _ in range(IDLE_CONTAINERS):
        docker.first_command()
    return [(before - settled_memory()) / IDLE_CONTAINERS / MB]
