"""Connections: lost and found again, distinguished from a dead engine, and never two loops (B24, lesson 12)."""

import asyncio
import os
import signal
from itertools import islice
from pathlib import Path

import pytest

from hutch import Hutch
from hutch.client.transport.heartbeat import Rhythm
from hutch.errors import HutchError, Unavailable
from hutch.model.status import Condition
from tests.client.conftest import QUICK
from tests.client.proxy import proxy
from tests.server.serving import Server, serving

PATIENCE = 60.0


class News:
    """Collects what a client reports about its connection."""

    def __init__(self) -> None:
        self.states: list[bool] = []
        self._came = asyncio.Event()

    def __call__(self, there: bool, why: str) -> None:
        assert there or why, "a loss has its reason"
        self.states.append(there)
        self._came.set()

    async def until(self, *wanted: bool) -> None:
        async with asyncio.timeout(PATIENCE):
            while tuple(self.states[-len(wanted) :]) != wanted:
                self._came.clear()
                await self._came.wait()


def lifelines() -> int:
    return sum(task.get_name() == "hutch-lifeline" for task in asyncio.all_tasks())


def restart(server: Server, number: int = signal.SIGKILL) -> None:
    server.end(number)
    (server.state / "server.json").unlink(missing_ok=True)  # a killed one could not
    server.start()


def unix(server: Server) -> str:
    return f"unix:{server.run}/server.sock"


def test_the_back_off() -> None:
    """3 s doubling to 60 s, and never giving up; a heartbeat every 20 s (B24)."""
    rhythm = Rhythm()
    assert list(islice(rhythm.pauses(), 8)) == [0, 3, 6, 12, 24, 48, 60, 60]
    assert rhythm.interval_sec == 20


async def test_a_killed_server_is_found_again() -> None:
    """After kill -9 and restart the client continues with boxes, leases, jobs and a stream from its cursor. A callback
    that raises does not end its one loop (lesson 12)."""
    news = News()

    def broken_listener(there: bool, why: str) -> None:
        news(there, why)
        raise RuntimeError("the callback is broken")

    with serving() as server:
        async with Hutch(unix(server), rhythm=QUICK, on_connection_change=broken_listener) as hutch:
            box = await hutch.create()
            await box.files.write("f", "before")
            job = await box.start("i=0; while read line; do i=$((i+1)); echo $i $line; done")
            got = b""
            follow = job.follow()
            for number in range(3):
                await job.write(f"line{number}\n")
                while f"line{number}\n".encode() not in got:
                    got += (await anext(follow))[1]
                if number < 2:
                    await asyncio.to_thread(restart, server)
                    await news.until(False, True)
                    assert lifelines() == 1
            assert got == b"1 line0\n2 line1\n3 line2\n", "no byte is lost, none comes twice"
            await follow.aclose()  # type: ignore[attr-defined]
            assert await box.files.read("f") == b"before"
            assert (await box.exec("echo well")).ok
            await box.destroy()
        assert news.states.count(True) == news.states.count(False)
        assert lifelines() == 0


async def test_a_clean_close_is_a_disconnect() -> None:
    """A server that ends in good order is gone all the same, and is found again; waits continue at the next one
    (B24)."""
    news = News()
    with serving() as server:
        async with Hutch(unix(server), rhythm=QUICK, on_connection_change=news) as hutch:
            box = await hutch.create()
            job = await box.start("read line; exit 7")
            waiting = asyncio.create_task(job.wait())
            reading = asyncio.create_task(job.read(wait=3000))
            await asyncio.to_thread(restart, server, signal.SIGTERM)
            await news.until(False, True)
            await job.write("x\n")
            assert (await waiting).exit_code == 7
            assert (await reading).eof
            await box.destroy()


async def test_a_silent_server_is_noticed(server: Server) -> None:
    """A connection that is open and dead: no answer within the bound counts as a loss (B24)."""
    news = News()
    rhythm = Rhythm(interval_sec=0.1, answer_timeout_sec=0.5, retry_sec=0.05, max_retry_sec=0.2, first_delay_sec=0.0)
    async with Hutch(unix(server), rhythm=rhythm, on_connection_change=news) as hutch:
        async with hutch.box() as box:
            os.kill(server.pid, signal.SIGSTOP)
            try:
                asking = asyncio.create_task(box.files.exists("none"))
                await news.until(False)
                assert (await hutch.boxes(), lifelines()) == ((), 1)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            assert await asking is False, "what waited is asked again"
            await news.until(False, True)


async def test_a_dead_backend_is_no_lost_connection() -> None:
    """Behind a healthy connection the engine is unusable: unavailable, with its reason, and no reconnect (B24, B25)."""
    news = News()
    with serving(HUTCH_PROVIDER="none-such") as server:
        async with Hutch(unix(server), rhythm=QUICK, on_connection_change=news) as hutch:
            for _ in range(3):
                status = await hutch.status()
                assert (status.state, status.available) == (Condition.UNAVAILABLE, False)
                assert "none-such" in status.reason
                with pytest.raises(HutchError) as failed:
                    await hutch.create()
                assert not isinstance(failed.value, Unavailable) or "none-such" in str(failed.value)
            assert await hutch.boxes() == ()
            assert news.states == []


async def test_status_never_fails(server: Server, wire: Path) -> None:
    """Asked all the time while the wire is cut and mended, it always answers, with a reason (B25, lesson 11)."""
    seen: set[Condition] = set()
    async with proxy(server.run / "server.sock", wire) as middle:
        async with Hutch(middle.url, rhythm=QUICK) as hutch:
            for number in range(30):
                asking = asyncio.create_task(hutch.status())
                if number % 3 == 1:
                    middle.cut()
                if number == 10:
                    await middle.refuse()
                if number == 20:
                    await middle.listen()
                status = await asking
                seen.add(status.state)
                assert status.available or status.reason
            assert await hutch.boxes() == ()
            while not (await hutch.status()).available:
                await asyncio.sleep(0.01)
    assert seen == {Condition.READY, Condition.UNREACHABLE}


async def test_a_server_that_never_was(wire: Path) -> None:
    """The application starts all the same. Calls fail at once with the reason, which the status shows too (B21)."""
    async with Hutch(f"unix:{wire}", rhythm=QUICK) as hutch:
        status = await hutch.status()
        assert (status.state, status.enabled, status.available) == (Condition.UNREACHABLE, True, False)
        assert str(wire) in status.reason and status.remedy
        assert await hutch.boxes() == ()
        for _ in range(2):
            with pytest.raises(ConnectionError):
                await hutch.create()


async def test_a_server_that_comes_later(server: Server, wire: Path) -> None:
    """It never gives up: a server that appears long after is found without being asked."""
    news = News()
    async with Hutch(f"unix:{wire}", rhythm=QUICK, on_connection_change=news) as hutch:
        with pytest.raises(Unavailable):
            await hutch.create()
        await news.until(False)
        async with proxy(server.run / "server.sock", wire):
            await news.until(False, True)
            async with hutch.box() as box:
                assert (await box.exec("true")).ok


async def test_a_wrong_key_is_reported(server: Server) -> None:
    """Unauthenticated is neither a lost connection nor a server that is away."""
    news = News()
    async with Hutch(server.announcement["url"], key="nothing", rhythm=QUICK, on_connection_change=news) as hutch:
        with pytest.raises(PermissionError):
            await hutch.create()
        assert "key" in (await hutch.status()).reason
        assert news.states == []


async def test_a_long_wait_has_all_patience_when_it_breaks(server: Server, wire: Path) -> None:
    """The timeout bounds the outage and not the request: a longer wait continues after the loss."""
    rhythm = Rhythm(interval_sec=0.05, retry_sec=0.05, max_retry_sec=0.05, outage_timeout_sec=0.5, first_delay_sec=0.0)
    async with proxy(server.run / "server.sock", wire) as middle, Hutch(middle.url, rhythm=rhythm) as hutch:
        async with hutch.box() as box:
            job = await box.start("read line; exit 7")
            waiting = asyncio.create_task(job.wait())
            began = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() - began < 2 * rhythm.outage_timeout_sec:
                assert await box.files.exists("/tmp")
                await asyncio.sleep(0.05)
            middle.cut()
            assert await box.state()
            await job.write("x\n")
            assert (await waiting).exit_code == 7
