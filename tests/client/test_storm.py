"""Many clients at a server that is killed again and again."""

import asyncio
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from hutch import Hutch
from hutch.client.transport.heartbeat import Rhythm
from hutch.errors import HutchError
from tests.client.test_connection import restart
from tests.proofs import write
from tests.server.serving import Server, serving

RHYTHM = Rhythm(interval_sec=1.0, answer_timeout_sec=5.0, retry_sec=0.1, max_retry_sec=1.0, outage_timeout_sec=60.0)


async def client(url: str, number: int, seconds: float, everybody: asyncio.Barrier) -> dict[str, int]:
    """One agent's work, each step checked: what was acknowledged is there, reading resumes at its cursor."""
    seen = {"operations": 0, "refused": 0, "lines": 0}
    chance = random.Random(number)
    async with Hutch(url, session=f"storm-{number}", rhythm=RHYTHM) as hutch:
        box = await hutch.create(memory_mb=64, disk_mb=32, ttl_sec=600)
        writing = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"
        job = await box.start(writing)
        follow, got = job.follow(), b""
        if await everybody.wait() == 0:
            print("started", flush=True)
        until = time.time() + seconds
        written: dict[str, bytes] = {}
        while time.time() < until:
            try:
                name, data = f"f{chance.randrange(20)}", os.urandom(chance.randrange(1, 5000))
                await box.files.write(name, data)
                written[name] = data
                for each, content in list(written.items())[:3]:
                    assert await box.files.read(each) == content, "an acknowledged write is there"
                result = await box.exec(f"echo {number}")
                assert result.stdout == f"{number}\n"
                got += (await anext(follow))[1]
                seen["operations"] += 3
            except HutchError as error:
                assert (error.code, error.retryable) == ("unavailable", True), error.to_wire()
                seen["refused"] += 1
        numbers = [int(line) for line in got.split(b"\n")[:-1]]
        assert numbers == list(range(1, len(numbers) + 1)), "the stream lost nothing and repeated nothing"
        seen["lines"] = len(numbers)
        await follow.aclose()  # type: ignore[attr-defined]
        await box.destroy()
    return seen


async def clients(url: str, count: int, seconds: float) -> None:
    everybody = asyncio.Barrier(count)
    done = await asyncio.gather(*(client(url, number, seconds, everybody) for number in range(count)))
    print(json.dumps({name: sum(each[name] for each in done) for name in done[0]}))


async def storm(server: Server, count: int, seconds: float, kills: int) -> dict[str, int]:
    """The clients are another process, which knows nothing of the kills."""
    program = f"import asyncio, tests.client.test_storm as s; asyncio.run(s.clients({str(server.run / 'server.sock')!r}"
    program = program.replace("s.clients('", "s.clients('unix:") + f", {count}, {seconds}))"
    working = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert working.stdout is not None
    assert await working.stdout.readline() == b"started\n"
    for _ in range(kills):
        await asyncio.sleep(seconds / (kills + 1))
        await asyncio.to_thread(restart, server, signal.SIGKILL)
    answer = await working.stdout.read()
    assert await working.wait() == 0
    seen: dict[str, int] = json.loads(answer)
    return seen


async def test_a_few_clients_and_a_kill() -> None:
    """Only typed, retryable errors; nothing acknowledged is lost; streams continue."""
    with serving() as server:
        seen = await storm(server, 4, 6.0, 1)
    assert seen["operations"] and seen["lines"], seen


@pytest.mark.proof
async def test_many_clients_and_many_kills() -> None:
    """64 clients in another process for 60 s, while the server is killed and started again."""
    with serving() as server:
        seen = await storm(server, 64, 60.0, 8)
    assert seen["operations"] > 1000
    write("restart_under_load", clients=64, seconds=60, kills=8, **seen)
