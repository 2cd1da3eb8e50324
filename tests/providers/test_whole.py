"""A whole Hutch on Docker: images from the configuration, keepers that die and are followed by others."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hutch.config import Config
from hutch.errors import Refused, Unsupported
from hutch.keeper.embedded import Hutch
from hutch.keeper.keeper import Keeper
from hutch.keeper.store.sqlite import SqliteStore
from hutch.model.boxes import State
from tests.keeper.faulty_keeper import crash
from tests.providers import daemons, rootfs

NUMBERS = "i=0; while :; do echo $i; i=$((i+1)); sleep 0.02; done"


def keeper_on(daemon: daemons.Daemon, place: Path, *, strict: bool = False, **settings: Any) -> Keeper:
    table = {"host": daemon.host, "image": rootfs.NAME, "cgroup_parent": daemons.CGROUP, **settings}
    config = Config.load(
        environ={}, cwd=place, state_dir=str(place / "s"), run_dir=str(place / "r"), provider="docker",
        orphan_grace_sec=30.0, strict=strict, providers={"docker": table},
    )  # fmt: skip
    return Keeper(config, SqliteStore(config.state_dir / "hutch.db"))


@asynccontextmanager
async def opened(daemon: daemons.Daemon, place: Path, **settings: Any) -> AsyncIterator[Hutch]:
    async with Hutch(keeper=keeper_on(daemon, place, **settings)) as hutch:
        yield hutch


async def test_the_image_comes_from_the_settings(docker: daemons.Daemon, short_tmp: Path) -> None:
    """S8: nobody has to name one; without any it is an error that says what to write."""
    async with opened(docker, short_tmp) as hutch, hutch.box() as box:
        assert (await box.exec("echo $((6 * 7))")).stdout == "42\n"
    async with opened(docker, short_tmp, image="") as hutch:
        with pytest.raises(Unsupported) as caught:
            await hutch.create()
        assert "image" in str(caught.value)


async def test_strict_refuses_what_only_a_watchdog_bounds(docker: daemons.Daemon, short_tmp: Path) -> None:
    """B17: the layer of a writable root and the volumes of a persistent box have no size of their own."""
    keeper = keeper_on(docker, short_tmp, strict=True)
    async with Hutch(keeper=keeper) as hutch:
        async with hutch.box(read_only_root=True) as box:
            assert (await box.exec("echo made")).stdout == "made\n"
        for weak in ({"read_only_root": False}, {"read_only_root": True, "retention": "persistent"}):
            with pytest.raises(Refused, match=r"disk_mb is not held .*only a watchdog"):
                await hutch.create(**weak)


@pytest.mark.parametrize("lane", ["fast", "api"])
async def test_boxes_outlive_their_keeper_with_their_jobs(docker: daemons.Daemon, short_tmp: Path, lane: str) -> None:
    """P16: the next keeper adopts the container, its job and the output that nobody has read."""
    first = Hutch(keeper=keeper_on(docker, short_tmp, lane=lane))
    await first.__aenter__()
    box = await first.create(profile="code")
    job = await box.start(NUMBERS)
    while b"2\n" not in (await job.read(0, wait=5.0)).data:
        pass
    await crash(first._keeper)
    async with opened(docker, short_tmp, lane=lane) as second:
        again = await second.attach(box.id)
        adopted = await again.job(job.id)
        read = (await adopted.read(0, wait=5.0)).text.split()
        assert read[:3] == ["0", "1", "2"], "from the first byte on"
        assert (await again.exec("echo adopted")).stdout == "adopted\n"
        assert next(each.state for each in await second.boxes() if each.id == box.id) is State.RUNNING
        await second.destroy(box.id)


async def test_a_live_keepers_containers_are_never_orphans(docker: daemons.Daemon, short_tmp: Path) -> None:
    """B27, lesson 10: another process on the same state directory starts, sweeps and ends, and nothing happens."""
    async with opened(docker, short_tmp) as hutch, hutch.box() as box:
        async with opened(docker, short_tmp) as other, other.box() as theirs:
            assert (await theirs.exec("true")).ok
            await other._keeper.engines.provider("docker").sweep()
        assert (await box.exec("echo alive")).stdout == "alive\n"
