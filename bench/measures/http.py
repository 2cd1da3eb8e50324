"""The same over HTTP: a server in a process of its own, and Hutch's own client on TCP with a key."""

import asyncio
import contextlib
import json
import random
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from bench.contest import Contender, blocking, contest
from bench.numbers import Goal, Number, Summary, at_least, at_most, percentile, times_faster
from bench.setting import Setting
from hutch import Hutch
from hutch.api import Box

MB = 10**6
FILE = 100 * MB
OUTPUT = 300 * MB
CLIENTS = 64
SECONDS = 30.0
EVERY_SECONDS = 0.25
"""How often each of the many clients asks: an agent that hardly thinks."""
POOLED = "code"
"""The profile whose boxes wait ready, while others are made when they are asked for."""
CONFIG = f"""
max_boxes = 0
[server]
rate_per_sec = 0
[pool]
{POOLED} = 8
"""


async def http(setting: Setting) -> list[Number]:
    async with served(setting, "http") as server:
        hutch = server.hutch
        alone = await _execs(setting, hutch)
        return [
            await _creates(setting, hutch),
            await _claims(setting, hutch),
            alone,
            await _many(setting, hutch, alone.ours.p50),
            await _without_pause(setting, hutch),
            *await _files(setting, hutch),
            await _output(setting, hutch),
        ]


@dataclass(frozen=True)
class Served:
    """A server that runs, and a client of its first key."""

    hutch: Hutch
    url: str
    key: str


@contextlib.asynccontextmanager
async def served(setting: Setting, name: str) -> AsyncIterator[Served]:
    state, run = setting.state / name, setting.run / name
    state.mkdir()
    (state / "hutch.toml").write_text(CONFIG)
    environ = dict(each.split("=", 1) for each in setting.environment())
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


async def _creates(setting: Setting, hutch: Hutch) -> Number:
    """Until the box has answered; its first command is another request."""

    async def once() -> float:
        start = perf_counter()
        box = await hutch.create()
        taken = perf_counter() - start
        await box.destroy()
        return taken

    taken = [1000 * await once() for _ in range(setting.count(300))]
    return Number("http_create", "create over HTTP", "ms", Summary.of(taken), goals=(at_most(10, "ms"),))


async def _claims(setting: Setting, hutch: Hutch) -> Number:
    async def once() -> float:
        await _full_pool(setting)
        start = perf_counter()
        box = await hutch.create(profile=POOLED)
        taken = perf_counter() - start
        await box.destroy()
        return taken

    taken = [1000 * await once() for _ in range(setting.count(100))]
    what = "a ready box claimed over HTTP"
    return Number("http_claim", what, "ms", Summary.of(taken), goals=(at_most(3, "ms"),))


async def _full_pool(setting: Setting) -> None:
    """The server's own count; and then a moment, so that the refill is over when the next one is claimed."""
    reader, writer = await asyncio.open_unix_connection(str(setting.run / "http" / "server.sock"))
    try:
        while True:
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
            told = (await reader.readexactly(size)).decode()
            ready = [line for line in told.splitlines() if line.startswith(f'hutch_pool_ready{{profile="{POOLED}"}}')]
            if ready and float(ready[0].split()[-1]) >= 8:
                return
            await asyncio.sleep(0.01)
    finally:
        writer.close()


async def _execs(setting: Setting, hutch: Hutch) -> Number:
    docker = setting.peers.engines.get("docker")
    async with hutch.box() as box:
        contenders = [Contender("hutch", partial(_true, box), setting.count(500))]
        container = docker.create() if docker is not None else ""
        if docker is not None:
            work: Callable[[], None] = partial(docker.exec, container, ["true"])
            contenders.append(Contender("docker", blocking(work), setting.count(50)))
        outcome = await contest(contenders)
        if docker is not None:
            docker.remove(container)
    setting.peers.missing.update(outcome.failed)
    peers = {name: Summary.of(values) for name, values in outcome.milliseconds.items()}
    goals = (at_most(4, "ms"), times_faster(15, "docker"))
    return Number("http_exec", "exec `true` over HTTP", "ms", peers.pop("hutch"), peers, goals)


async def _true(box: Box) -> float:
    start = perf_counter()
    result = await box.exec(["true"])
    taken = perf_counter() - start
    assert result.exit_code == 0
    return taken


async def _many(setting: Setting, hutch: Hutch, alone: float) -> Number:
    """Each client has its session and its box, and asks again a while after it asked before; an error is the end."""
    seconds = SECONDS if not setting.brief else 1.0

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
    goal = Goal(f"p99 ({tail:.1f} ms) ≤ 10× the p50 of one client ({alone:.1f} ms)", lambda _: tail <= 10 * alone)
    what = f"{CLIENTS} clients over HTTP, {1 / EVERY_SECONDS:g} commands a second each"
    return Number("http_clients", what, "ms", Summary.of(taken), goals=(goal,))


async def _without_pause(setting: Setting, hutch: Hutch) -> Number:
    """The most that the machine does: every client asks again as soon as it was answered; a sample is one second."""
    seconds = 8.0 if not setting.brief else 1.0
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


async def _files(setting: Setting, hutch: Hutch) -> list[Number]:
    data = random.Random(1).randbytes(MB) * (FILE // MB)
    count = setting.count(20)
    async with hutch.box(memory_mb=512, disk_mb=512) as box:

        async def up() -> float:
            start = perf_counter()
            await box.files.write("large", data)
            return FILE / MB / (perf_counter() - start)

        async def down() -> float:
            start, read = perf_counter(), 0
            async for piece in box.files.open("large"):
                read += len(piece)
            assert read == FILE
            return FILE / MB / (perf_counter() - start)

        await up()
        rates = [(await up(), await down()) for _ in range(count)]
        assert await box.files.digest("large") == _digest(data)
    return [
        _rate("http_upload", "100 MB up over HTTP", [each for each, _ in rates]),
        _rate("http_download", "100 MB down over HTTP", [each for _, each in rates]),
    ]


def _digest(data: bytes) -> str:
    from hashlib import sha256

    return sha256(data).hexdigest()


async def _output(setting: Setting, hutch: Hutch) -> Number:
    size = OUTPUT if not setting.brief else OUTPUT // 20
    async with hutch.box() as box:
        rates = []
        for _ in range(setting.count(10) + 1):
            start, read = perf_counter(), 0
            async for _, piece in box.stream(["head", "-c", str(size), "/dev/zero"]):
                read += len(piece)
            assert read == size
            rates.append(size / MB / (perf_counter() - start))
    return _rate("http_output", f"{size // MB} MB of output through exec over HTTP", rates[1:])


def _rate(name: str, what: str, rates: list[float]) -> Number:
    goals = (at_least(300, "MB/s"),)
    return Number(name, what, "MB/s", Summary.of(rates, more_is_better=True), goals=goals, more_is_better=True)
