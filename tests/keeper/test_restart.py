"""After a crash, boxes of a dead keeper are adopted or destroyed, and those of a living one are not touched."""

from pathlib import Path

import pytest

from hutch.errors import EngineError, HeldElsewhere, Unavailable
from hutch.keeper.boxes import clocks
from hutch.keeper.boxes.records import BoxRecord
from hutch.keeper.embedded import Hutch
from hutch.model.boxes import State
from hutch.model.spec import Spec
from tests.keeper.faulty import Engine
from tests.keeper.faulty_keeper import crash, keeper_on, opened


async def test_a_dead_keepers_boxes_are_adopted(tmp_path: Path) -> None:
    """The box, its record and its lease epoch survive the process (B27, P16)."""
    engine = Engine()
    first = Hutch(keeper=keeper_on(engine, tmp_path))
    box = await first.create()
    await crash(first._keeper)
    async with opened(engine, tmp_path) as second:
        (record,) = second._keeper.boxes()
        assert record.id == box.id
        assert record.keeper == second._keeper.id
        assert (await (await second.attach(box.id)).exec("true")).ok


async def test_what_is_taken_over_gets_the_clocks_of_its_new_keeper(tmp_path: Path) -> None:
    """The grace is 10 s if embedded and 15 min under a server, for every box; its ttl keeps running."""
    engine = Engine()
    first = Hutch(keeper=keeper_on(engine, tmp_path, orphan_grace_sec=10))
    box = await first.create(ttl_sec=1000)
    await crash(first._keeper)
    async with opened(engine, tmp_path, orphan_grace_sec=900) as second:
        ((answer, grace, ttl),) = engine.clocks
        assert (answer, grace) == (box.id, 900)
        assert ttl is not None and 900 < ttl - clocks.GRACE_SECONDS <= 1000
        (record,) = second._keeper.boxes()
        assert (record.grace_sec, record.spec.ttl_sec) == (900, 1000)


async def test_what_was_left_to_itself_keeps_its_clock(tmp_path: Path) -> None:
    """`hutch box create --keep` chose the grace, and using the box in between does not change it."""
    engine = Engine()
    first = keeper_on(engine, tmp_path, orphan_grace_sec=7200)
    first.visiting = True
    async with Hutch(keeper=first) as hutch:
        box = await hutch.create()
    async with opened(engine, tmp_path, orphan_grace_sec=10) as second:
        assert not second._keeper.boxes()
        await second.attach(box.id, takeover=True)
        assert engine.clocks == [(box.id, 7200, 0.0)]
        (record,) = second._keeper.boxes()
        assert record.grace_sec == 7200


async def test_a_live_keepers_boxes_are_left_alone(tmp_path: Path) -> None:
    """A box of a living keeper is refused with `held_elsewhere` and a remedy (lesson 10)."""
    engine = Engine()
    async with opened(engine, tmp_path) as first:
        box = await first.create()
        async with opened(engine, tmp_path) as second:
            assert not second._keeper.boxes()
            with pytest.raises(HeldElsewhere) as held:
                await second.attach(box.id)
            assert held.value.remedy
            with pytest.raises(HeldElsewhere):
                await second.destroy(box.id)
        assert (await box.exec("true")).ok


async def test_what_is_lost_is_forgotten_after_the_engine_was_asked(tmp_path: Path) -> None:
    """The provider destroys the box from its record alone, and only then is it forgotten (lesson 1, lesson 2)."""
    engine = Engine()
    first = Hutch(keeper=keeper_on(engine, tmp_path))
    box = await first.create()
    await crash(first._keeper)
    engine.boxes.clear()
    engine.log.clear()
    async with opened(engine, tmp_path) as second:
        assert not second._keeper.boxes()
        assert ("destroy", box.id) in engine.log
        tombstone = await second._keeper.store.tombstone(box.id)  # type: ignore[arg-type]
        assert tombstone is not None
        assert "lost" in tombstone.reason


async def test_a_half_made_box_is_cleaned(tmp_path: Path) -> None:
    """The intent is recorded before the action, so a crash during a creation is found from its record."""
    engine = Engine()
    first = Hutch(keeper=keeper_on(engine, tmp_path))
    await first.create()
    box = await first.create()
    live = await first._keeper.live(box.id)
    await first._keeper.states.change(live.record, State.STOPPING, reason="interrupted")
    await crash(first._keeper)
    async with opened(engine, tmp_path) as second:
        assert {record.id for record in second._keeper.boxes()} == set(engine.boxes)
        assert box.id not in engine.boxes


async def test_boxes_without_a_record_are_swept_but_only_of_dead_keepers(tmp_path: Path) -> None:
    engine = Engine()
    async with opened(engine, tmp_path) as alive:
        mine = await alive.create()
        stray = engine.boxes[mine.id].but(box_id="b" * 20, keeper="k-dead")  # type: ignore[index]
        engine.boxes[stray.box_id] = stray
        second = keeper_on(engine, tmp_path)
        second.engines.provider("faulty")
        await second.start()
        assert set(engine.boxes) == {mine.id}
        await second.close()


async def test_an_engine_that_is_away_at_restart_loses_nothing(tmp_path: Path) -> None:
    engine = Engine()
    first = Hutch(keeper=keeper_on(engine, tmp_path))
    box = await first.create()
    await crash(first._keeper)
    engine.fault = lambda op, _: Unavailable("engine is down") if op == "attach" else None
    second = keeper_on(engine, tmp_path)
    await second.start()
    (record,) = second.boxes()
    assert record.state is State.UNKNOWN
    assert set(engine.boxes) == {box.id}
    engine.fault = lambda op, _: None
    await crash(second)
    async with opened(engine, tmp_path) as third:
        (record,) = third._keeper.boxes()
        assert record.state is State.RUNNING


async def test_a_persistent_box_comes_back_with_the_next_keeper(tmp_path: Path) -> None:
    """A persistent box is stopped at close and restored at its next use (P16)."""
    engine = Engine()
    async with opened(engine, tmp_path) as first:
        box = await first.create(retention="persistent")
        gone = await first.create()
    assert set(engine.stopped) == {box.id}
    assert gone.id not in engine.boxes
    async with opened(engine, tmp_path) as second:
        again = await second.attach(box.id)
        assert (await again.exec("true")).ok
        await again.destroy()
    assert not engine.stopped


async def test_a_failed_restore_keeps_the_box_for_the_next_try(tmp_path: Path) -> None:
    engine = Engine()
    async with opened(engine, tmp_path) as first:
        box = await first.create(retention="persistent")
    async with opened(engine, tmp_path) as second:
        engine.fault = lambda op, _: EngineError("no room") if op == "restore" else None
        with pytest.raises(EngineError):
            await second.attach(box.id)
        (record,) = second._keeper.boxes()
        assert record.state is State.STOPPED
        engine.fault = lambda op, _: None
        assert (await (await second.attach(box.id)).exec("true")).ok


async def test_a_keeper_may_go_and_leave_its_boxes(tmp_path: Path) -> None:
    """A box that is left, as by `hutch box create`, is there for the next command in another process."""
    engine = Engine()
    first = keeper_on(engine, tmp_path)
    await first.start()
    live = await first.create(Spec(), session="s")
    await first.detach()
    assert set(engine.boxes) == {live.record.id}
    async with opened(engine, tmp_path) as second:
        assert (await (await second.attach(live.record.id, takeover=True)).exec("true")).ok


async def test_a_created_hook_that_a_crash_cut_off_runs_again(tmp_path: Path) -> None:
    """Setup runs until it has succeeded once, and then never again (P10)."""
    engine = Engine()
    first = Hutch(keeper=keeper_on(engine, tmp_path))
    box = await first.create()
    await crash(first._keeper)
    calls: list[str] = []

    async def hook(record: BoxRecord) -> None:
        calls.append(record.id)
        if len(calls) == 1:
            raise EngineError("not yet")

    async with opened(engine, tmp_path) as second:
        second._keeper.hooks.created.append(hook)
        with pytest.raises(EngineError, match="not yet"):
            await second.attach(box.id)
        await second.attach(box.id)
        await second.attach(box.id)
    assert calls == [box.id, box.id]
