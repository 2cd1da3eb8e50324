"""Layers of a quiet box: checkpoint, rollback and fork, beside a plain creation and what Docker offers for them."""

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

from bench.context import Context
from bench.interleave import Candidate, interleave
from bench.measures.create import first_command
from bench.numbers import Number, Summary, at_most_times, times_faster
from bench.peers.engine import Engine
from hutch.api import Box
from hutch.keeper.embedded import Hutch

FILES = 10_000
CREATE, FIRST, FEW, MANY = "a plain create", "the first of 100", "10 files", "100,000 files"
COMMIT = "docker"
DEPTH = 100
SPEC: dict[str, Any] = {"disk_mb": 1024, "memory_mb": 256}


async def layers(context: Context) -> list[Number]:
    async with context.hutch(checkpoints_max=100_000) as hutch, hutch.box(**SPEC) as box, hutch.box(**SPEC) as few:
        await _fill(box, FILES)
        await _fill(few, 10)
        many = await hutch.create(**SPEC)
        await _fill(many, 1000 if context.brief else 100_000)
        candidates = [
            Candidate(CREATE, lambda: first_command(hutch), context.count(100)),
            Candidate("checkpoint", _checkpoint(box), context.count(100)),
            Candidate("rollback", _rollback(box), context.count(100)),
            Candidate("fork", lambda: _fork(box), context.count(60)),
            Candidate(FEW, _checkpoint(few), context.count(60)),
            Candidate(MANY, _checkpoint(many), context.count(60)),
        ]
        docker = context.peers.engines.get("docker")
        if docker is not None:
            container = docker.create()
            candidates += [
                Candidate("docker commit", _commit(docker, container), context.count(10)),
                Candidate("docker fork", _docker_fork(docker, container), context.count(10)),
            ]
        samples = await interleave(candidates)
        if docker is not None:
            docker.remove(container)
        await many.destroy()
        deep = await _deep(hutch, context)
    context.peers.missing.update(samples.failed)
    found = {name: Summary.of(values) for name, values in samples.milliseconds.items()}
    plain = {CREATE: found[CREATE]}
    commit = {COMMIT: found["docker commit"]} if "docker commit" in found else {}
    forked = {COMMIT: found["docker fork"]} if "docker fork" in found else {}
    first, last = (Summary.of(each) for each in deep)
    return [
        Number("checkpoint", "checkpoint of a quiet box with 10,000 files", "ms", found["checkpoint"], plain | commit,
               (at_most_times(1.0, CREATE), times_faster(15, COMMIT))),
        Number("rollback", "rollback of the same", "ms", found["rollback"], plain, (at_most_times(1.5, CREATE),)),
        Number("fork", "fork of the same, to its first command", "ms", found["fork"], plain | forked,
               (at_most_times(2.5, CREATE), times_faster(15, COMMIT))),
        Number("checkpoint_files", "checkpoint beside 100,000 files", "ms", found[MANY], {FEW: found[FEW]},
               (at_most_times(1.3, FEW),)),
        Number("checkpoint_deep", "checkpoint 100 deep", "ms", last, {FIRST: first}, (at_most_times(2.0, FIRST),)),
    ]  # fmt: skip


async def _fill(box: Box, count: int) -> None:
    script = (
        f"import os\nfor n in range({count}):\n os.makedirs(f'd{{n % 100}}', exist_ok=True)\n"
        " open(f'd{n % 100}/{n}', 'w').write('x')"
    )
    done = await box.exec(["python3", "-c", script])
    assert done.exit_code == 0, done


def _checkpoint(box: Box) -> Callable[[], Awaitable[float]]:
    async def once() -> float:
        await box.files.write("change", b"1")
        start = perf_counter()
        made = await box.checkpoint()
        taken = perf_counter() - start
        await box.delete_checkpoint(made.id)
        return taken

    return once


def _rollback(box: Box) -> Callable[[], Awaitable[float]]:
    async def once() -> float:
        made = await box.checkpoint()
        await box.files.write("change", b"1")
        start = perf_counter()
        await box.rollback(made.id)
        taken = perf_counter() - start
        await box.delete_checkpoint(made.id)
        return taken

    return once


async def _fork(box: Box) -> float:
    start = perf_counter()
    (fork,) = await box.fork()
    result = await fork.exec(["true"])
    taken = perf_counter() - start
    await fork.destroy()
    assert result.exit_code == 0
    return taken


async def _deep(hutch: Hutch, context: Context) -> tuple[list[float], list[float]]:
    """Milliseconds of the first checkpoints of a box, and of those a hundred deep."""
    first, last = [], []
    for _ in range(context.count(10)):
        async with hutch.box(**SPEC) as box:
            times = []
            for number in range(DEPTH + 5):
                await box.files.write("change", str(number).encode())
                start = perf_counter()
                await box.checkpoint()
                times.append((perf_counter() - start) * 1000)
        first += times[1:6]  # the very first loads the code
        last += times[DEPTH:]
    return first, last


def _commit(engine: Engine, container: str) -> Callable[[], Awaitable[float]]:
    async def once() -> float:
        start = perf_counter()
        image = engine.call("POST", f"/commit?container={container}&pause=true", {})["Id"]
        taken = perf_counter() - start
        engine.call("DELETE", f"/images/{image}?force=true")
        return taken

    return once


def _docker_fork(engine: Engine, container: str) -> Callable[[], Awaitable[float]]:
    async def once() -> float:
        start = perf_counter()
        image = engine.call("POST", f"/commit?container={container}&pause=true", {})["Id"]
        made = engine.create(image)
        engine.exec(made, ["true"])
        taken = perf_counter() - start
        engine.remove(made)
        engine.call("DELETE", f"/images/{image}?force=true")
        return taken

    return once
