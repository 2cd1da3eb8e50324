"""An engine that dies under load: its boxes are `unknown` with a reason, others keep running, and they come back with
it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hutch.api import Box
from hutch.config import Config
from hutch.errors import HutchError, Unavailable
from hutch.keeper.embedded import Hutch
from hutch.keeper.keeper import Keeper
from hutch.keeper.store.sqlite import SqliteStore
from hutch.model.boxes import State
from tests.providers import daemons, rootfs

LOAD = "i=0; while :; do echo $i; i=$((i+1)); sleep 0.05; done"


@pytest.fixture
def lasting() -> Iterator[daemons.Daemon]:
    """A daemon whose containers outlive it."""
    with daemons.docker(live_restore=True) as daemon:
        yield daemon


@asynccontextmanager
async def opened(daemon: daemons.Daemon, place: Path, **settings: Any) -> AsyncIterator[Hutch]:
    table = {"host": daemon.host, "image": rootfs.NAME, "cgroup_parent": daemons.CGROUP, **settings}
    config = Config.load(
        environ={}, cwd=place, state_dir=str(place / "s"), run_dir=str(place / "r"), providers={"docker": table}
    )
    async with Hutch(keeper=Keeper(config, SqliteStore(config.state_dir / "hutch.db"))) as hutch:
        yield hutch


async def state_of(hutch: Hutch, box: Box) -> tuple[State, str]:
    found = next(each for each in await hutch.boxes() if each.id == box.id)
    return found.state, found.reason


async def until_unknown(hutch: Hutch, box: Box) -> str:
    async with asyncio.timeout(30):
        while True:
            try:
                await box.exec("true")
            except HutchError:
                state, reason = await state_of(hutch, box)
                if state is State.UNKNOWN:
                    return reason
            await asyncio.sleep(0.05)


async def test_boxes_are_unknown_and_come_back(lasting: daemons.Daemon, short_tmp: Path) -> None:
    """The issue's own words: unknown with a reason, other providers keep serving, back when the daemon is."""
    async with opened(lasting, short_tmp, lane="api") as hutch:
        async with hutch.box(provider="docker") as box, hutch.box(provider="native") as other:
            job = await box.start(LOAD)
            assert (await job.read(wait=30.0)).data
            lasting.kill()
            reason = await until_unknown(hutch, box)
            assert reason
            assert (await other.exec("echo native")).stdout == "native\n"
            with pytest.raises(Unavailable):
                await box.exec("true")
            lasting.start()
            assert (await box.exec("echo back")).stdout == "back\n"
            assert (await state_of(hutch, box))[0] is State.RUNNING
            again = await box.job(job.id)
            before = (await again.info()).stdout_total
            assert (await again.read(before, wait=30.0)).data, "its jobs went on meanwhile"


async def test_a_conversations_box_is_not_replaced_while_its_daemon_is_away(
    lasting: daemons.Daemon, short_tmp: Path
) -> None:
    """`box_for` says that the box cannot be reached, and returns the same one with its files when it can."""
    async with opened(lasting, short_tmp, lane="api") as hutch:
        async with hutch.box_for("{chat}", chat=1, spec={"provider": "docker"}) as box:
            await box.files.write("note.txt", "kept")
            lasting.kill()
            await until_unknown(hutch, box)
        with pytest.raises(Unavailable):
            async with hutch.box_for("{chat}", chat=1, spec={"provider": "docker"}):
                raise AssertionError("the box was replaced")
        lasting.start()
        async with hutch.box_for("{chat}", chat=1, spec={"provider": "docker"}) as again:
            assert again.id == box.id
            assert await again.files.read_text("note.txt") == "kept"
        await hutch.destroy(box.id)


async def test_the_fast_lane_does_not_need_the_daemon(lasting: daemons.Daemon, short_tmp: Path) -> None:
    """Commands go straight to the guest: a dead daemon costs only what the daemon does."""
    async with opened(lasting, short_tmp, lane="fast") as hutch, hutch.box(provider="docker") as box:
        lasting.kill()
        assert (await box.exec("echo without a daemon")).stdout == "without a daemon\n"
        with pytest.raises(HutchError):
            await hutch.create(provider="docker")
        lasting.start()
        assert (await box.exec("true")).ok


async def test_a_box_that_went_with_its_daemon_is_lost_and_said_so(docker: daemons.Daemon, short_tmp: Path) -> None:
    """Without live-restore a daemon that comes back ends what it finds: then the box is gone, and nobody pretends."""
    async with opened(docker, short_tmp, lane="api") as hutch:
        box = await hutch.create(provider="docker")
        docker.kill()
        await until_unknown(hutch, box)
        docker.start()
        async with asyncio.timeout(30):
            while (await state_of(hutch, box))[0] is not State.ERROR:
                with pytest.raises(HutchError):
                    await box.exec("true")
        assert "no longer runs" in (await state_of(hutch, box))[1]
        await hutch.destroy(box.id)
        assert await hutch.boxes() == ()
