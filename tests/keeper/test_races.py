"""Two at once: a caller that decides by what it has read must not be overtaken before it acts."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hutch.errors import BoxBusy, Conflict, EngineError, LeaseLost, QuotaExceeded
from hutch.keeper.embedded import Hutch
from hutch.model.boxes import State
from hutch.model.spec import Spec
from tests.keeper.faulty import Engine, fail_once
from tests.keeper.faulty_keeper import crash, keeper_on, opened
from tests.keeper.gates import GatedStore

PATIENCE = 30.0


async def as_far_as_it_comes() -> None:
    """A caller that should wait does so however long this takes; one that does not has the time to show it."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("limits", [{"quotas": {"*": {"boxes": 1}}}, {"max_boxes": 1, "quotas": {"*": {"boxes": 9}}}])
async def test_a_box_made_while_another_looks_for_room_counts(limits: dict[str, Any], tmp_path: Path) -> None:
    """What the store said before another box was on record is not believed after (B15)."""
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
    """Proves (B15)."""
    engine = Engine()
    async with opened(engine, tmp_path, quotas={"*": {"boxes": 3}}) as hutch:
        results = await asyncio.gather(*(hutch.create() for _ in range(12)), return_exceptions=True)
        assert sum(isinstance(result, QuotaExceeded) for result in results) == 9
        assert len(engine.boxes) == 3


async def test_pool_boxes_count_for_the_owner_who_gets_them(tmp_path: Path) -> None:
    """A ready box is quicker to get, not another way around a quota; nor does a quota hold up the pool (B15)."""
    engine = Engine()
    async with opened(engine, tmp_path, pool={"default": 3}, quotas={"*": {"boxes": 2}}) as hutch:
        pool = hutch._keeper.pool
        async with asyncio.timeout(PATIENCE):
            await hutch.boxes()
            while pool.waiting()["default"] < 3:
                await asyncio.sleep(0.01)
        results = await asyncio.gather(*(hutch.create() for _ in range(5)), return_exceptions=True)
        assert sum(isinstance(result, QuotaExceeded) for result in results) == 3
        assert pool.claims["default"] == 2, "who is refused takes no ready box from others"


async def test_capacity_freed_during_a_check_is_not_missed(tmp_path: Path) -> None:
    """The queue is for those who find no room, not for those who looked too early (B15)."""
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
    """A creation that is under way and already on record is one box, not two (B15)."""
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


async def test_a_command_that_begins_while_its_box_is_paused_wakes_it(tmp_path: Path) -> None:
    """Sent to a box that is about to stand still, it would never end (lesson 3)."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        box = await hutch.create()
        gate = engine.gates.shut("pause")
        pausing = asyncio.create_task(box.pause())
        await gate.reached.wait()
        working = asyncio.create_task(box.exec("true"))
        await asyncio.sleep(0)  # it has begun
        gate.open.set()
        assert (await working).ok
        await pausing
        assert [op for op, _ in engine.log if op in ("pause", "resume", "run")] == ["pause", "resume", "run"]
        assert await box.state() is State.RUNNING


async def test_a_command_that_was_faster_than_the_record_is_not_paused(tmp_path: Path) -> None:
    """It began before the box was to be paused (lesson 3)."""
    engine, store = Engine(), GatedStore()
    async with opened(engine, tmp_path, store=store) as hutch:
        box = await hutch.create()
        written, runs = store.gates.shut("replace"), engine.gates.shut("run")
        pausing = asyncio.create_task(box.pause())
        await written.reached.wait()
        working = asyncio.create_task(box.exec("true"))
        await runs.reached.wait()
        written.open.set()
        with pytest.raises(Conflict, match="1 operations run"):
            await pausing
        runs.open.set()
        assert (await working).ok
        assert "pause" not in [op for op, _ in engine.log]
        assert await box.state() is State.RUNNING


async def test_a_keeper_that_dies_while_it_pauses_a_box_leaves_one_that_is_woken(tmp_path: Path) -> None:
    """Nobody knows whether it was frozen, so the record says that it may be (lesson 2)."""
    engine = Engine()
    dying = keeper_on(engine, tmp_path)
    await dying.start()
    live = await dying.create(Spec(), session="s")
    gate = engine.gates.shut("pause")
    pausing = asyncio.create_task(dying.pauser.pause(live))
    await gate.reached.wait()
    await crash(dying)
    async with opened(engine, tmp_path) as hutch:
        box = await hutch.attach(live.record.id, takeover=True)
        assert ("resume", box.id) in engine.log
        assert (await box.exec("true")).ok
    gate.open.set()
    await pausing


async def test_a_box_that_could_not_be_paused_runs(tmp_path: Path) -> None:
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        box = await hutch.create()
        engine.fault = fail_once("pause", EngineError("no freezer"))
        with pytest.raises(EngineError, match="no freezer"):
            await box.pause()
        assert await box.state() is State.RUNNING
        assert (await box.exec("true")).ok


@pytest.mark.parametrize("by", ["handle", "id"])
async def test_a_box_that_is_taken_over_while_its_end_waits_its_turn_lives(by: str, tmp_path: Path) -> None:
    """The holder of the box is checked when its end begins (P6, lesson 5)."""
    engine, store = Engine(), GatedStore()
    async with opened(engine, tmp_path, store=store) as hutch:
        box = await hutch.create()
        gate = store.gates.shut("replace")
        taking = asyncio.create_task(hutch.for_session("other").attach(box.id, takeover=True))
        await gate.reached.wait()
        ending = asyncio.create_task(box.destroy() if by == "handle" else hutch.destroy(box.id))
        await asyncio.sleep(0)  # it waits
        store.gates.spare("replace")
        gate.open.set()
        with pytest.raises(LeaseLost if by == "handle" else BoxBusy):
            await ending
        assert (await (await taking).exec("true")).ok


async def test_nobody_makes_a_box_before_the_keeper_has_started(tmp_path: Path) -> None:
    """A box of a keeper that is not claimed looks abandoned to every other (lesson 10)."""
    engine, store = Engine(), GatedStore()
    hutch = Hutch(keeper=keeper_on(engine, tmp_path, store=store))
    gate = store.gates.shut("all")
    first = asyncio.create_task(hutch.create())
    await gate.reached.wait()
    second = asyncio.create_task(hutch.create())
    await as_far_as_it_comes()
    assert not engine.log
    first.cancel()
    store.gates.spare("all")
    box = await second
    assert await hutch._keeper.liveness.alive(hutch._keeper.id)
    assert (await box.exec("true")).ok
    await hutch.close()


@pytest.mark.parametrize(("step", "way"), [("replace", "attach"), ("put_note", "switch")])
async def test_a_lease_is_not_released_under_a_handle_that_is_on_its_way(step: str, way: str, tmp_path: Path) -> None:
    """The last handle was closed, but the next one of the same session was about to open (P6, lesson 5)."""
    engine, store = Engine(), GatedStore()
    async with opened(engine, tmp_path, store=store) as hutch:
        bot = hutch.for_session("bot")
        first = await bot.create()
        gate = store.gates.shut(step)
        coming = asyncio.create_task(getattr(bot, way)(first.id))
        await gate.reached.wait()
        releasing = asyncio.create_task(first.release())
        await asyncio.sleep(0)
        store.gates.spare(step)
        gate.open.set()
        await releasing
        second = await coming
        with pytest.raises(BoxBusy):
            await hutch.for_session("other").attach(first.id)
        assert (await second.exec("true")).ok


async def test_a_key_whose_box_is_being_destroyed_gives_a_new_one(tmp_path: Path) -> None:
    """A creation waits for a destruction in progress (lesson 3)."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        old = await hutch.create(key="k")
        gate = engine.gates.shut("destroy")
        ending = asyncio.create_task(old.destroy())
        await gate.reached.wait()
        making = asyncio.create_task(hutch.create(key="k"))
        await asyncio.sleep(0)
        gate.open.set()
        new = await making
        await ending
        assert new.id != old.id
        assert (await new.exec("true")).ok


async def test_two_changes_at_once_do_not_undo_each_other(tmp_path: Path) -> None:
    """Proves (B14)."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        box = await hutch.create()
        gate = engine.gates.shut("limits")
        one = asyncio.create_task(box.change(memory_mb=77))
        await gate.reached.wait()
        other = asyncio.create_task(box.change(pids=55))
        await asyncio.sleep(0)
        gate.open.set()
        await asyncio.gather(one, other)
        assert (box.spec.limits.memory_mb, box.spec.limits.pids) == (77, 55)


async def test_a_closing_keeper_waits_for_destructions_in_progress(tmp_path: Path) -> None:
    """What is half destroyed is not left behind (lesson 2)."""
    engine = Engine()
    keeper = keeper_on(engine, tmp_path)
    await keeper.start()
    live = await keeper.create(Spec(), session="s")
    gate = engine.gates.shut("destroy")
    ending = asyncio.create_task(keeper.destroy(live.record.id))
    await gate.reached.wait()
    going = asyncio.create_task(keeper.detach())
    await as_far_as_it_comes()
    gate.open.set()
    assert await ending
    await going
    assert not engine.boxes
    async with opened(engine, tmp_path) as hutch:
        assert await hutch.boxes() == ()


async def test_two_first_calls_of_a_session_work_in_one_box(tmp_path: Path) -> None:
    """The second call finds the box of the first, and another session waits for neither (P7, lesson 9)."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        gate = engine.gates.shut("create")
        calls = [asyncio.create_task(hutch.working()) for _ in range(2)]
        await gate.reached.wait()
        await as_far_as_it_comes()
        engine.gates.spare("create")
        other = await hutch.for_session("other").working()
        gate.open.set()
        first, second = await asyncio.gather(*calls)
        assert first.id == second.id == await hutch.current()
        assert set(engine.boxes) == {first.id, other.id}


@pytest.mark.parametrize("pooled", [False, True])
async def test_a_name_is_given_once(pooled: bool, tmp_path: Path) -> None:
    """Both found it free (lesson 3)."""
    engine, store = Engine(), GatedStore()
    pool = {"default": 1} if pooled else {}
    async with opened(engine, tmp_path, store=store, pool=pool) as hutch:
        while sum(hutch._keeper.pool.waiting().values()) < len(pool):
            await asyncio.sleep(0.01)
        gate = store.gates.shut("by_name")
        late = asyncio.create_task(hutch.create(name="web"))
        await gate.reached.wait()
        store.gates.spare("by_name")
        box = await hutch.create(name="web", memory_mb=99)
        gate.open.set()
        with pytest.raises(Conflict, match="called web"):
            await late
        assert (await hutch.find("web")).id == box.id
        assert [each.id for each in await hutch.boxes()] == [box.id]
        assert sum(hutch._keeper.pool.claims.values()) == len(pool)


async def test_a_name_is_not_given_to_two_boxes_that_are_renamed(tmp_path: Path) -> None:
    """Proves (lesson 3)."""
    engine, store = Engine(), GatedStore()
    async with opened(engine, tmp_path, store=store) as hutch:
        one, other = await hutch.create(), await hutch.create()
        gate = store.gates.shut("by_name")
        late = asyncio.create_task(one.rename("web"))
        await gate.reached.wait()
        store.gates.spare("by_name")
        await other.rename("web")
        gate.open.set()
        with pytest.raises(Conflict, match="called web"):
            await late
        assert (await hutch.find("web")).id == other.id
