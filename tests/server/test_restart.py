"""A server that is killed and started again under many clients: they lose time, and nothing else."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.leaks import cgroups_of
from tests.proofs import write
from tests.server.serving import Server, serving, until

ROOT = Path(__file__).parents[2]


async def under_load(server: Server, *, clients: int, seconds: float, kills: int) -> dict[str, Any]:
    """Run clients in another process over TCP and return what they counted; that process fails on a broken promise.

    Afterwards nothing is left of their boxes, whichever server created them.
    """
    url = server.announcement["url"]
    keepers = keepers_of(server)
    loading = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.server.restart_load", url, str(clients), str(seconds),
        env={**os.environ, "HUTCH_KEY": server.key("user", "load")}, cwd=ROOT,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        answer = asyncio.create_task(loading.communicate())
        # A server that a client has never reached is an error at once, so the first kill waits for every client.
        await asyncio.to_thread(until, each_has_come(server, clients, answer.done))
        for _ in range(kills):
            done, _ = await asyncio.wait({answer}, timeout=seconds / (kills + 1))
            if done:
                break
            await asyncio.to_thread(killed_and_started, server, url)
            keepers |= keepers_of(server)
        out, errors = await answer
    finally:
        if loading.returncode is None:
            loading.kill()
    assert loading.returncode == 0, errors.decode()[-8000:]
    nothing_left(server, keepers)
    counted: dict[str, Any] = json.loads(out)
    return counted


def each_has_come(server: Server, clients: int, ended: Callable[[], bool]) -> Callable[[], bool]:
    """Return a question: has each client, which has a box of its own, made one, or has the load ended?"""
    admin, seen = server.unix(hutch_admin="yes"), set[str]()

    def come() -> bool:
        seen.update(box["id"] for box in admin.good("GET", "/v1/boxes")["boxes"])
        return len(seen) >= clients or ended()

    return come


def killed_and_started(server: Server, url: str) -> None:
    server.end(signal.SIGKILL)
    (server.state / "server.json").unlink(missing_ok=True)  # the killed server could not remove it
    server.start("--port", url.rpartition(":")[2])


def keepers_of(server: Server) -> set[str]:
    return {path.name for path in (server.state / "keepers").iterdir()}


def nothing_left(server: Server, keepers: set[str]) -> None:
    """Check that no box is left, and after the server's end no directory, process or group of one."""
    admin = server.unix(hutch_admin="yes")
    until(lambda: not admin.good("GET", "/v1/boxes")["boxes"])
    assert keepers
    assert server.end() == 0
    until(lambda: not guests_of(server))
    assert [path.name for path in server.run.iterdir() if path.is_dir()] == ["keepers"]
    assert not [path for keeper in keepers for path in cgroups_of(keeper)]


def guests_of(server: Server) -> list[str]:
    """Return sockets of the server's boxes that still listen; the kernel also lists those of removed files."""
    return [line for line in Path("/proc/net/unix").read_text().splitlines() if f" {server.run}/" in line]


async def test_a_killed_server_costs_its_clients_nothing_but_time() -> None:
    """Clients see only typed retryable errors; acknowledged work is there, done once; streams go on (B24)."""
    with serving(HUTCH_SERVER_RATE_PER_SEC="0") as server:
        seen = await under_load(server, clients=16, seconds=8.0, kills=2)
        assert seen["acknowledged"] and seen["lines"] and seen["events"], seen


@pytest.mark.proof
async def test_many_clients_and_many_kills() -> None:
    """64 clients in another process work for 60 s."""
    with serving(HUTCH_SERVER_RATE_PER_SEC="0") as server:
        seen = await under_load(server, clients=64, seconds=60.0, kills=8)
    write("server-restart", clients=64, seconds=60, kills=8, **seen)
