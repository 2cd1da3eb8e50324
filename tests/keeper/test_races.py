"""Two at once: whoever decides by what it has seen must not be overtaken before it acts."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hutch.errors import QuotaExceeded
from tests.keeper.faulty import Engine
from tests.keeper.gates import GatedStore
from tests.keeper.house import opened

PATIENCE = 30.0


@pytest.mark.parametrize("limits", [{"quotas": {"*": {"boxes": 1}}}, {"max_boxes": 1, "quotas": {"*": {"boxes": 9}}}])
async def test_a_box_made_while_another_looks_for_room_counts(limits: dict[str, Any], tmp_path: Path) -> None:
    """B15: what the store said before another box was on record is not believed after."""
    engine, store = Engine(), GatedStore()
    async with opened(engine, tmp_path, store=store, **limits) as hutch:
        gate = store.gates.shut("all")
        looking = asyncio.create_task(hutch.create())
        await gate.reached.wait()
        store.gates.spare("all")
        await hutch.create()
        gate.open.set()
        with pytest.raises(QuotaExceeded):
            await looking
        assert len(engine.boxes) == 1


async def test_many_at_once_get_no_more_than_the_quota(tmp_path: Path) -> None:
    """B15."""
    engine = Engine()
    async with opened(engine, tmp_path, quotas={"*": {"boxes": 3}}) as hutch:
        results = await asyncio.gather(*(hutch.create() for _ in range(12)), return_exceptions=True)
        assert sum(isinstance(result, QuotaExceeded) for result in results) == 9
        assert len(engine.boxes) == 3


async def test_room_that_comes_free_while_somebody_looks_is_not_missed(tmp_path: Path) -> None:
    """B15: the queue is for those who find no room, not for those who looked too early."""
    engine, store = Engine(), GatedStore()
    async with opened(engine, tmp_path, store=store, queue_sec=3600, quotas={"*": {"boxes": 1}}) as hutch:
        first = await hutch.create()
        gate = store.gates.shut("all")
        looking = asyncio.create_task(hutch.create())
        await gate.reached.wait()
        store.gates.spare("all")
        await first.destroy()
        gate.open.set()
        async with asyncio.timeout(PATIENCE):
            assert (await (await looking).exec("true")).ok


async def test_a_box_is_counted_once_while_its_record_is_written(tmp_path: Path) -> None:
    """B15: a creation that is under way and already on record is one box, not two."""
    engine, store = Engine(), GatedStore()
    async with opened(engine, tmp_path, store=store, quotas={"*": {"boxes": 2}}) as hutch:
        gate = store.gates.shut("insert")
        writing = asyncio.create_task(hutch.create())
        await gate.reached.wait()
        store.gates.spare("insert")
        await hutch.create()
        gate.open.set()
        await writing
        assert len(engine.boxes) == 2
