"""Hutch inside a program whose event loop is not asyncio's own: uvicorn chooses uvloop where it is installed."""

import asyncio
from pathlib import Path

import uvloop

from hutch import Hutch
from tests.both.forms import TIMEOUT
from tests.conftest import LOOP


def test_an_embedded_hutch_works_on_uvloop(tmp_path: Path) -> None:
    """Creation, commands, streams, terminals and files, for the author of a bot behind uvicorn."""

    async def use() -> None:
        async with Hutch() as hutch, hutch.box() as box:
            assert (await box.exec("cat", stdin=b"x" * 3_000_000)).stdout_bytes.count(b"x") > 0
            pieces = [piece async for name, piece in box.stream("echo one; echo two >&2")]
            assert b"".join(sorted(pieces)) == b"one\ntwo\n"
            terminal = await box.start("stty size; cat", pty=True)
            await terminal.write(b"typed\n")
            seen = b""
            async with asyncio.timeout(TIMEOUT):
                while seen.count(b"typed\r\n") < 2:  # the terminal's echo, and the program's
                    seen = (await terminal.read(0, wait=1.0)).data
            await box.files.write("big", b"y" * 5_000_000)
            assert len(await box.files.read("big")) == 5_000_000
            async with box.files.watch() as changes:
                await box.files.write("new", "x")
                async with asyncio.timeout(TIMEOUT):
                    await anext(aiter(changes))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(use())


async def test_embedded_tests_run_on_the_loop_that_was_asked_for() -> None:
    """The run of `make test` that is about uvloop would otherwise prove nothing."""
    assert type(asyncio.get_running_loop()).__module__.partition(".")[0] == (LOOP or "asyncio")
