"""The same over HTTP: a server in a process of its own, and Hutch's own client on TCP with a key."""

import asyncio
import contextlib
import json
import random
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from time import perf_counter
from typing import Any

from bench.context import Context
from bench.interleave import Candidate, blocking, interleave
from bench.measures.output import CONTAINER_BYTES, docker_output, rates, read_stream
from bench.numbers import Goal, Number, Summary, at_least_times, at_most_times, percentile, times_faster
from bench.peers.loopback import loopback
from hutch import Hutch
from hutch.api import Box
from hutch.keeper.embedded import Hutch as Embedded

MB = 10**6
FILE = 100 * MB
OUTPUT = 300 * MB
CLIENTS = 64
SECONDS = 30.0
EVERY_SECONDS = 0.25
"""Seconds between two commands of each of the many clients."""
POOLED = "code"
"""The profile whose boxes wait in the pool; boxes of other profiles are created on request."""
IN_PROCESS = "create in process"
LOOPBACK = "plain loopback copy"
CONFIG = f"""
max_boxes = 0
[server]
rate_per_sec = 0
[pool]
{POOLED} = 8
"""


async def http(context: Context) -> list[Number]:
    async with served(context, "http") as server, context.hutch() as embedded:
        hutch = server.hutch
        alone = await _execs(context, hutch)
        return [
            await _creates(context, hutch, embedded),
            await _claims(context, hutch, embedded),
            alone,
            await _many(context, hutch, alone.ours.p50),
            await _without_pause(context, hutch),
            *await _files(context, hutch),
            await _output(context, hutch),
        ]


@dataclass(frozen=True)
class Served:
    """A server that runs, and a client of its first key."""

    hutch: Hutch
    url: str
    key: str


@contextlib.asynccontextmanager
async def served(context: Context, name: str) -> AsyncIterator[Served]:
    state, run = context.state / name, context.run / name
    state.mkdir(mode=0o700)
    (state / "hutch.toml").write_text(CONFIG)
    environ = dict(each.split("=", 1) for each in context.environment())
    environ |= {"HUTCH_STATE_DIR": str(state), "HUTCH_RUN_DIR": str(run), "HUTCH_CONFIG": str(state / "hutch.toml")}
    log = (state / "log").open("wb")
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hutch.cli.main", "serve", "--port", "0", env=environ, stdout=log, stderr=log
    )
    try:
        while not (state / "server.json").exists():
            if server.returncode is not None:
                raise RuntimeError((state / "log").read_text())
            await asyncio.sleep(0.02)
        url = json.loads((state / "server.json").read_text())["url"]
        key = (state / "first-key").read_text().strip()
        async with Hutch(url, key=key, session="bench") as hutch:
            yield Served(hutch, url, key)
            for box in await hutch.boxes():
                await hutch.destroy(box.id, force=True)
    finally:
        if server.returncode is None:
            server.terminate()
        await server.wait()
        log.close()


async def _creates(context: Context, hutch: Hutch, embedded: Embedded) -> Number:
    """Until the box has answered; its first command is another request."""
    samples = await interleave(
        [
            Candidate("hutch", partial(_create, hutch), context.count(300)),
            Candidate(IN_PROCESS, partial(_create, embedded), context.count(300)),
        ]
    )
    ours, theirs = (Summary.of(samples.milliseconds[name]) for name in ("hutch", IN_PROCESS))
    return Number(
        "http_create", "create over HTTP", "ms", ours, {IN_PROCESS: theirs}, (at_most_times(1.3, IN_PROCESS),)
    )


async def _claims(context: Context, hutch: Hutch, embedded: Embedded) -> Number:
    async def claim() -> float:
        await _full_pool(context)
        return await _create(hutch, profile=POOLED)

    samples = await interleave(
        [
            Candidate("hutch", claim, context.count(100)),
            Candidate(IN_PROCESS, partial(_create, embedded), context.count(100)),
        ]
    )
    ours, theirs = (Summary.of(samples.milliseconds[name]) for name in ("hutch", IN_PROCESS))
    what = "a ready box claimed over HTTP"
    return Number("http_claim", what, "ms", ours, {IN_PROCESS: theirs}, (at_most_times(0.6, IN_PROCESS),))


async def _create(hutch: Hutch | Embedded, **spec: Any) -> float:
    start = perf_counter()
    box = await hutch.create(**spec)
    taken = perf_counter() - start
    await box.destroy()
    return taken


async def _full_pool(context: Context) -> None:
    """Wait until the server counts a full pool, so that no refill goes on while the next box is claimed."""
    reader, writer = await asyncio.open_unix_connection(str(context.run / "http" / "server.sock"))
    try:
        while True:
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
            metrics = (await reader.readexactly(size)).decode()
            wanted = f'hutch_pool_ready{{profile="{POOLED}"}}'
            ready = [line for line in metrics.splitlines() if line.startswith(wanted)]
            if ready and float(ready[0].split()[-1]) >= 8:
                return
            await asyncio.sleep(0.01)
    finally:
        writer.close()


async def _execs(context: Context, hutch: Hutch) -> Number:
    docker = context.peers.engines.get("docker")
    async with hutch.box() as box:
        candidates = [Candidate("hutch", partial(_true, box), context.count(500))]
        container = docker.create() if docker is not None else ""
        if docker is not None:
            work: Callable[[], None] = partial(docker.exec, container, ["true"])
            candidates.append(Candidate("docker", blocking(work), context.count(50)))
        samples = await interleave(candidates)
        if docker is not None:
            docker.remove(container)
    context.peers.missing.update(samples.failed)
    peers = {name: Summary.of(values) for name, values in samples.milliseconds.items()}
    goals = (times_faster(15, "docker"),)
    return Number("http_exec", "exec `true` over HTTP", "ms", peers.pop("hutch"), peers, goals)


async def _true(box: Box) -> float:
    start = perf_counter()
    result = await box.exec(["true"])
    taken = perf_counter() - start
    assert result.exit_code == 0
    return taken


async def _many(context: Context, hutch: Hutch, alone: float) -> Number:
    """Each client has its session and its box and runs a command at a fixed interval; any error ends the bench."""
    seconds = SECONDS if not context.brief else 1.0

    async def client(number: int, taken: list[float]) -> None:
        async with hutch.for_session(f"client-{number}").box(memory_mb=64, disk_mb=16) as box:
            await box.exec(["true"])
            due = perf_counter() + random.Random(number).uniform(0, EVERY_SECONDS)
            end = due + seconds
            while due < end:
                await asyncio.sleep(max(0.0, due - perf_counter()))
                taken.append(1000 * await _true(box))
                due += EVERY_SECONDS

    taken: list[float] = []
    await asyncio.gather(*(client(number, taken) for number in range(CLIENTS)))
    tail = percentile(taken, 0.99)
    goal = Goal("p99 ≤ 25× the p50 of one client", lambda _: tail / alone, 25)
    what = f"{CLIENTS} clients over HTTP, {1 / EVERY_SECONDS:g} commands a second each"
    return Number("http_clients", what, "ms", Summary.of(taken), goals=(goal,))


async def _without_pause(context: Context, hutch: Hutch) -> Number:
    """The highest rate: every client asks again as soon as it has its answer. A sample is one second."""
    seconds = 8.0 if not context.brief else 1.0
    done: list[float] = []

    async def client(number: int) -> None:
        async with hutch.for_session(f"busy-{number}").box(memory_mb=64, disk_mb=16) as box:
            start = perf_counter()
            while perf_counter() - start < seconds:
                await _true(box)
                done.append(perf_counter())

    await asyncio.gather(*(client(number) for number in range(CLIENTS // 4)))
    first = min(done)
    rates = [float(sum(first + second <= at < first + second + 1 for at in done)) for second in range(int(seconds))]
    what = f"commands over HTTP by {CLIENTS // 4} clients without a pause"
    return Number("http_rate", what, "execs/s", Summary.of(rates, more_is_better=True), more_is_better=True)


async def _files(context: Context, hutch: Hutch) -> list[Number]:
    data = random.Random(1).randbytes(MB) * (FILE // MB)
    async with hutch.box(memory_mb=512, disk_mb=512) as box:

        async def up() -> float:
            start = perf_counter()
            await box.files.write("large", data)
            return perf_counter() - start

        async def down() -> float:
            start, read = perf_counter(), 0
            async for piece in box.files.open("large"):
                read += len(piece)
            assert read == FILE
            return perf_counter() - start

        with loopback() as plain:

            async def plain_up() -> float:
                return plain.upload(data)

            async def plain_down() -> float:
                return plain.download(FILE)

            count = context.count(20)
            samples = await interleave(
                [
                    Candidate("up", up, count), Candidate("down", down, count),
                    Candidate("plain up", plain_up, count), Candidate("plain down", plain_down, count),
                ]
            )  # fmt: skip
        assert await box.files.digest("large") == sha256(data).hexdigest()
    rates = {name: _rates(values, FILE) for name, values in samples.milliseconds.items()}
    goals = (at_least_times(0.3, LOOPBACK),)
    return [
        Number(
            f"http_{name}load", f"100 MB {name} over HTTP", "MB/s", rates[name], {LOOPBACK: rates[f"plain {name}"]},
            goals, more_is_better=True,
        )
        for name in ("up", "down")
    ]  # fmt: skip


async def _output(context: Context, hutch: Hutch) -> Number:
    size = OUTPUT if not context.brief else OUTPUT // 20
    docker = context.peers.engines.get("docker")
    async with hutch.box() as box:
        candidates = [Candidate("hutch", partial(read_stream, box, size), context.count(10))]
        container = docker.create() if docker is not None else ""
        if docker is not None:
            candidates.append(docker_output(docker, container, context.count(5)))
        samples = await interleave(candidates)
        if docker is not None:
            docker.remove(container)
    context.peers.missing.update(samples.failed)
    peers = {name: _rates(values, CONTAINER_BYTES) for name, values in samples.milliseconds.items() if name != "hutch"}
    ours = _rates(samples.milliseconds["hutch"], size)
    what = f"{size // MB} MB of output through exec over HTTP"
    return Number("http_output", what, "MB/s", ours, peers, (at_least_times(1.3, "docker"),), more_is_better=True)


def _rates(milliseconds: list[float], size: int) -> Summary:
    return Summary.of(rates(milliseconds, size), more_is_better=True)
