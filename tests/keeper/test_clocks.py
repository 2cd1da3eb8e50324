"""The clocks of boxes: idle and ttl end them, trouble is reported, and one box's failure stops nobody else's clock."""

import asyncio
import errno
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hutch.errors import Conflict
from hutch.keeper.access.leases import new_lease
from hutch.keeper.boxes import clocks
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.records import LOCAL_OWNER
from hutch.keeper.keeper import Keeper
from hutch.keeper.locks import run_uncancelled
from hutch.model.boxes import State
from hutch.model.results import JobInfo, JobState
from hutch.model.spec import Spec
from tests.keeper.faulty import Engine
from tests.keeper.faulty_keeper import opened


async def test_idle_boxes_end_and_working_ones_do_not(tmp_path: Path) -> None:
    """A running job exempts its box; an open handle's lease postpones (B8)."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        held = await hutch.create(idle_timeout_sec=0.01)
        works = await hutch.create(idle_timeout_sec=0.01)
        idle = await hutch.create(idle_timeout_sec=0.01)
        engine.jobs[works.id] = (  # type: ignore[index]
            JobInfo(id="j", command=("sleep",), state=JobState.RUNNING, pid=2, started_at=0.0),
        )
        await works.release()
        await idle.release()
        keeper = hutch._keeper
        await asyncio.sleep(0.05)
        for box in (held, works, idle):
            await keeper._clocks.check(await keeper.live(box.id), 1e9)
        assert set(engine.boxes) == {held.id, works.id}


async def test_a_ttl_warns_first_and_waits_for_operations_a_bounded_time(tmp_path: Path) -> None:
    """Proves (lesson 6)."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        box = await hutch.create(ttl_sec=100)
        keeper = hutch._keeper
        live = await keeper.live(box.id)
        born = live.record.created_at
        await keeper._clocks.check(live, born + 30)
        await keeper._clocks.check(live, born + 50)
        await keeper._clocks.check(live, born + 60)
        warnings = [event for event in await hutch.events() if event.kind == "warning"]
        assert len(warnings) == 1
        live.pins += 1
        await keeper._clocks.check(live, born + 110)
        assert engine.boxes
        await keeper._clocks.check(live, born + 131)
        assert not engine.boxes


async def test_trouble_of_a_box_is_one_event_and_is_shown_while_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(Engine(), tmp_path) as hutch, hutch.box() as box, hutch.box() as other:
        keeper = hutch._keeper
        live = await keeper.live(box.id)
        assert live.instance is not None
        reason = (await box.info()).reason
        monkeypatch.setattr(live.instance, "trouble", lambda: "no network: use a new box", raising=False)
        for each in (live, await keeper.live(other.id)) * 2:
            await keeper._clocks.check(each, time.time())
        answer = [(event.box_id, event.reason) for event in await hutch.events() if event.kind == "warning"]
        assert answer == [(box.id, "no network: use a new box")]
        assert (await box.info()).reason == "no network: use a new box"
        assert await box.state() is State.RUNNING
        monkeypatch.undo()
        assert (await box.info()).reason == reason


async def test_the_clocks_stop_though_a_write_fails_at_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that survives every error must not survive its own end (lesson 12)."""
    writing = asyncio.Event()

    async def lose(*_: object) -> None:
        writing.set()
        await asyncio.sleep(0.1)
        raise Conflict("changed by somebody else meanwhile")

    monkeypatch.setattr(clocks, "TICK_SECONDS", 0.01)
    async with opened(Engine(), tmp_path) as hutch, hutch.box():
        monkeypatch.setattr(hutch._keeper._clocks, "check", lambda *_: run_uncancelled(lose()))
        await writing.wait()
        async with asyncio.timeout(5):
            await hutch._keeper._clocks.stop()


async def test_whatever_fails_at_one_box_the_clocks_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also an error that is none of ours, such as a descriptor that could not be had (lesson 12)."""
    monkeypatch.setattr(clocks, "TICK_SECONDS", 0.01)
    engine = Engine()
    async with opened(engine, tmp_path) as hutch, hutch.box() as troubled:
        live = await hutch._keeper.live(troubled.id)

        def trouble() -> str:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(live.instance, "trouble", trouble, raising=False)
        idle = await hutch.create(idle_timeout_sec=0.01)
        await idle.release()
        async with asyncio.timeout(20):
            while idle.id in engine.boxes:
                await asyncio.sleep(0.01)
        assert troubled.id in engine.boxes
        monkeypatch.undo()


@asynccontextmanager
async def asked_for_its_jobs(engine: Engine, keeper: Keeper, live: Live) -> AsyncIterator[None]:
    """The clock has found the box idle and asks for its jobs; at the end it gets its answer, and decides."""
    live.last_used -= 61
    gate = engine.gates.shut("jobs")
    looking = asyncio.create_task(keeper._clocks.check(live, time.time()))
    await gate.reached.wait()
    yield
    gate.open.set()
    await looking


async def test_an_idle_box_that_somebody_attaches_to_while_it_is_asked_for_its_jobs_lives(tmp_path: Path) -> None:
    """The clock decides by what is so when the end begins, not by what it saw before (lesson 5)."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        box = await hutch.create(idle_timeout_sec=60)
        await box.release()
        async with asked_for_its_jobs(engine, hutch._keeper, await hutch._keeper.live(box.id)):
            again = await hutch.attach(box.id)
        assert (await again.exec("true")).ok


async def test_a_box_of_the_pool_that_is_claimed_while_it_is_asked_for_its_jobs_lives(tmp_path: Path) -> None:
    """Proves (lesson 5)."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        keeper = hutch._keeper
        live = await keeper.pool._create(Spec(idle_timeout_sec=60))
        async with asked_for_its_jobs(engine, keeper, live):
            assert await keeper.pool_claims.give(live, Spec(), new_lease("s", time.time()), LOCAL_OWNER, "")
        assert live.record.id in engine.boxes


async def test_a_box_that_is_stopped_while_it_is_asked_for_its_jobs_keeps_its_files(tmp_path: Path) -> None:
    """A stopped box has no idle clock (P16)."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        box = await hutch.create(idle_timeout_sec=60, retention="persistent")
        await box.release()
        async with asked_for_its_jobs(engine, hutch._keeper, await hutch._keeper.live(box.id)):
            await box.stop()
        assert box.id in engine.stopped


async def test_an_operation_that_begins_while_the_clock_waits_its_turn_gets_its_grace(tmp_path: Path) -> None:
    """Proves (lesson 6)."""
    engine = Engine()
    async with opened(engine, tmp_path, lease_sec=0) as hutch:  # nothing to renew
        box = await hutch.create(ttl_sec=100)
        live = await hutch._keeper.live(box.id)
        runs = engine.gates.shut("run")
        async with live.state_lock:
            looking = asyncio.create_task(hutch._keeper._clocks.check(live, live.record.created_at + 101))
            await asyncio.sleep(0)  # it waits
            working = asyncio.create_task(box.exec("true"))
            await runs.reached.wait()
        await looking
        runs.open.set()
        assert (await working).ok
