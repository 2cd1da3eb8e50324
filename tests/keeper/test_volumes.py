"""Volumes: made, found and removed while others make boxes in them, or volumes of the same name."""

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from hutch.errors import Conflict, NotFound, Unavailable
from tests.keeper.faulty import Engine
from tests.keeper.faulty_keeper import opened
from tests.keeper.gates import GatedStore

PATIENCE = 30.0


async def test_a_volume_that_is_made_while_one_of_its_name_is_removed_has_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is removed is the old one's (lesson 3)."""
    removes, goes_on, rmtree = threading.Event(), threading.Event(), shutil.rmtree

    def slow(path: str, **options: Any) -> None:
        removes.set()
        goes_on.wait(PATIENCE)
        rmtree(path, **options)

    monkeypatch.setattr(shutil, "rmtree", slow)
    async with opened(Engine(), tmp_path) as hutch:
        old = await hutch.volumes.create("data")
        assert old.path
        Path(old.path, "old").touch()
        removing = asyncio.create_task(hutch.volumes.remove("data"))
        assert await asyncio.to_thread(removes.wait, PATIENCE)
        new = await hutch.volumes.create("data")
        assert new.path
        Path(new.path, "new").touch()
        goes_on.set()
        await removing
        assert [each.name for each in Path(new.path).iterdir()] == ["new"]
        assert list(Path(new.path).parent.iterdir()) == [Path(new.path)], "nothing is left of the old one"


async def test_a_volume_that_a_box_is_being_made_in_is_in_use(tmp_path: Path) -> None:
    """Its order has the place, and its record is not written yet (lesson 3)."""
    engine, store = Engine(), GatedStore()
    async with opened(engine, tmp_path, store=store) as hutch:
        volume = await hutch.volumes.create("data")
        assert volume.path
        gate = store.gates.shut("before insert")
        making = asyncio.create_task(hutch.create(workspace="volume:data"))
        await gate.reached.wait()
        with pytest.raises(Conflict, match="in use"):
            await hutch.volumes.remove("data")
        gate.open.set()
        await making
        assert Path(volume.path).is_dir()


async def test_a_box_made_in_a_volume_while_its_users_are_looked_up_keeps_it(tmp_path: Path) -> None:
    """What the store said before is not believed after (lesson 3)."""
    engine, store = Engine(), GatedStore()
    async with opened(engine, tmp_path, store=store) as hutch:
        volume = await hutch.volumes.create("data")
        assert volume.path
        gate = store.gates.shut("all")
        removing = asyncio.create_task(hutch.volumes.remove("data"))
        await gate.reached.wait()
        await hutch.create(workspace="volume:data")
        gate.open.set()
        with pytest.raises(Conflict, match="in use"):
            await removing
        assert Path(volume.path).is_dir()


async def test_a_volume_whose_removal_failed_is_there_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = GatedStore()
    async with opened(Engine(), tmp_path, store=store) as hutch:
        volume = await hutch.volumes.create("data")
        assert volume.path
        Path(volume.path, "kept").touch()

        async def away(kind: str, key: str) -> bool:
            raise Unavailable("the store is away")

        with monkeypatch.context() as patch:
            patch.setattr(store, "drop_note", away)
            with pytest.raises(Unavailable):
                await hutch.volumes.remove("data")
        assert Path(volume.path, "kept").exists()
        await hutch.volumes.remove("data")
        assert list(Path(volume.path).parent.iterdir()) == []
        with pytest.raises(NotFound):
            await hutch.create(workspace="volume:data")
