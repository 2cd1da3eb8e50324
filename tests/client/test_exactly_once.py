"""What must not happen twice does not, however the connection breaks."""

import asyncio
import signal
from pathlib import Path

import pytest

from hutch import Hutch
from hutch.errors import Unavailable
from tests.client.conftest import QUICK
from tests.client.proxy import Proxy, proxy
from tests.client.test_connection import restart, unix
from tests.server.serving import Server, serving


async def test_a_cut_exec_is_taken_up_again(server: Server, wire: Path) -> None:
    """The connection breaks while a command runs. The command runs only once, and its result arrives after all."""
    async with proxy(server.run / "server.sock", wire) as middle, Hutch(middle.url, rhythm=QUICK) as hutch:
        async with hutch.box() as box:
            running = asyncio.create_task(
                box.exec("echo run >> runs; while ! test -e go; do sleep 0.01; done; cat runs")
            )
            for _ in range(3):
                while not await box.files.exists("runs"):
                    await asyncio.sleep(0.01)
                middle.cut()
            await box.files.write("go", "")
            assert (await running).stdout == "run\n"


async def test_lost_answers_are_sent_again(server: Server, wire: Path) -> None:
    """The server did it and the answer never came: the same result again, and nothing done twice."""
    async with proxy(server.run / "server.sock", wire) as middle, Hutch(middle.url, rhythm=QUICK) as hutch:
        async with hutch.box() as box:
            await lose_next(middle)
            assert (await box.exec("echo run >> runs; cat runs")).stdout == "run\n"
            await lost(middle)
            await lose_next(middle)
            job = await box.start("echo start >> starts; sleep 1000")
            await lost(middle)
            while not await box.files.exists("starts"):
                await asyncio.sleep(0.01)
            assert [each.id for each in await box.jobs()] == [job.id]
            stream = box.stream("echo one; echo two >> twos; cat twos")
            await lose_next(middle)
            assert b"".join([data async for _, data in stream]) == b"one\ntwo\n"
            await lost(middle)


async def test_a_retried_creation_makes_one_box(server: Server, wire: Path) -> None:
    """Creation carries an Idempotency-Key of its own, chosen once for all tries."""
    key = server.key("user", "creator")
    own = server.tcp(key)
    async with proxy(server.run / "server.sock", wire) as middle, Hutch(middle.url, key=key, rhythm=QUICK) as hutch:
        assert await hutch.boxes() == ()
        await lose_next(middle)
        async with hutch.box() as box:
            await lost(middle)
            assert [each["id"] for each in own.good("GET", "/v1/boxes")["boxes"]] == [box.id]
        making = asyncio.create_task(hutch.create())
        while not own.good("GET", "/v1/boxes")["boxes"]:
            await asyncio.sleep(0)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            box = await making
            await box.destroy()
            raise asyncio.CancelledError  # it was faster
        while own.good("GET", "/v1/boxes")["boxes"]:
            await asyncio.sleep(0.01)


async def test_an_exec_of_a_killed_server_is_not_run_again() -> None:
    """Its outcome is unknown, so the caller gets a typed error, and the command is not run again."""
    with serving() as server:
        async with Hutch(unix(server), rhythm=QUICK) as hutch, hutch.box() as box:
            running = asyncio.create_task(box.exec("echo run >> runs; sleep 1000"))
            while not await box.files.exists("runs"):
                await asyncio.sleep(0.01)
            await asyncio.to_thread(restart, server, signal.SIGKILL)
            with pytest.raises(Unavailable) as unknown:
                await running
            assert (unknown.value.details["operation"], unknown.value.retryable) == ("unknown", True)
            assert await box.files.read("runs") == b"run\n"


async def test_what_may_not_be_repeated_says_so(server: Server, wire: Path) -> None:
    """An append whose answer was lost is not sent again, and the error says that its outcome is unknown."""
    async with proxy(server.run / "server.sock", wire) as middle, Hutch(middle.url, rhythm=QUICK) as hutch:
        async with hutch.box() as box:
            await lose_next(middle)
            with pytest.raises(ConnectionError):
                await box.files.write("f", b"once\n", append=True)
            assert await box.files.read("f") == b"once\n"
            await lose_next(middle)
            assert (await box.files.write("g", b"any number of times\n")).size == 20


async def test_a_client_that_stays_away_ends_its_command(server: Server) -> None:
    """Without a name for its operation a command ends with its caller's connection, as it always did."""
    client = server.unix()
    with client.box() as box:
        connection = client.connect()
        connection.request("POST", f"{box}/exec", b'{"command": "touch begun; sleep 1000"}')
        while client.call("GET", f"{box}/files/stat?path=begun").status != 200:
            await asyncio.sleep(0.01)
        connection.close()
        while client.good("POST", f"{box}/exec", {"command": "pgrep -x sleep"})["exit_code"] == 0:
            await asyncio.sleep(0.01)


async def lose_next(middle: Proxy) -> None:
    middle.swallowed.clear()
    middle.swallow.set()


async def lost(middle: Proxy) -> None:
    assert middle.swallowed.is_set(), "the answer was to be lost"
