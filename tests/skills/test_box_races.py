"""Skills of two boxes, or of one box twice, at the same moment."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from hutch.config import Config
from hutch.keeper.embedded import Hutch
from hutch.keeper.engines import Engines
from hutch.keeper.keeper import Keeper
from hutch.model.ids import BoxId
from hutch.providers.native.provider import NativeProvider
from tests.keeper.gates import GatedStore, Gates
from tests.skills.make_skill import run_dir, skill
from tests.skills.test_boxes import AT, Mountless, output_of

pytestmark = pytest.mark.slow


def on(store: GatedStore, top: Path, provider: NativeProvider) -> Hutch:
    config = Config.load(state_dir=top / "state", run_dir=run_dir(top), mount_roots=[str(top)])
    provider.configure(config.for_provider("native"))
    return Hutch(keeper=Keeper(config, store, engines=Engines(config, {"native": provider})))


async def test_a_mount_point_stays_for_a_box_that_is_being_made(tmp_path: Path) -> None:
    """The last box on record ends while the next one already relies on the directory (lesson 40)."""
    store = GatedStore()
    async with on(store, tmp_path, NativeProvider()) as hutch:
        await hutch.skills.install(skill(tmp_path))
        work = tmp_path / "work"
        work.mkdir()
        first = await hutch.create(workspace=str(work))
        gate = store.gates.shut("before insert")
        making = asyncio.create_task(hutch.create(workspace=str(work)))
        await gate.reached.wait()
        await first.destroy()
        gate.open.set()
        second = await making
        assert await output_of(second, f"ls {AT}") == "demo\n"
        await second.destroy()
        assert os.listdir(work) == [], "and goes with the last one"
        assert await store.notes("skill mount point") == {}


async def test_two_changes_of_skills_at_once_reach_a_box_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one copy into a box runs at a time (P11)."""
    async with on(GatedStore(), tmp_path, Mountless()) as hutch:
        for name in ("demo", "other"):
            await hutch.skills.install(skill(tmp_path, name))
        box = await hutch.create()
        live = await hutch._keeper.live(BoxId(box.id))
        gates, files = Gates(), live.running.files
        remove, gate = files.remove, gates.shut("remove")

        came: list[str] = []

        async def held(path: str, **options: Any) -> None:
            came.append(path)
            await gates.passed("remove")
            await remove(path, **options)

        monkeypatch.setattr(files, "remove", held)
        removing = asyncio.create_task(hutch.skills.remove("demo"))
        await gate.reached.wait()
        again = asyncio.create_task(hutch._keeper.skill_mounts.ensure_shown(live))
        for _ in range(50):  # a correct waiter waits however long this takes; an incorrect one has time to appear
            await asyncio.sleep(0.01)
        assert len(came) == 1
        gate.open.set()
        await asyncio.gather(removing, again)
        assert await output_of(box, f"ls {AT}") == "other\n"
