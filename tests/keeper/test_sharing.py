"""What boxes share and do not: the pool, quotas, sessions, volumes, and specs that change under a live box."""

import asyncio
from pathlib import Path

import pytest

from hutch.errors import BoxBroken, Conflict, EngineError, Gone, NotFound, QuotaExceeded
from hutch.keeper.boxes import clocks
from hutch.keeper.boxes.records import LOCAL_OWNER, POOL_OWNER, BoxRecord
from hutch.keeper.embedded import Hutch
from hutch.model.boxes import State
from hutch.model.spec import Spec
from tests.keeper.faulty import Engine, fail_once
from tests.keeper.faulty_keeper import crash, keeper_on, opened


async def filled(hutch: Hutch, profile: str, count: int) -> None:
    async with asyncio.timeout(30):
        while hutch._keeper.pool.waiting().get(profile) != count:
            await asyncio.sleep(0.005)


async def test_a_box_of_the_pool_is_claimed_whole(tmp_path: Path) -> None:
    """Pre-warmed; it gets its owner, lease, labels and created hook at claim (S10)."""
    engine = Engine()
    hooked: list[BoxRecord] = []

    async def hook(record: BoxRecord) -> None:
        hooked.append(record)

    async with opened(engine, tmp_path, pool={"default": 2}) as hutch:
        hutch._keeper.hooks.created.append(hook)
        await filled(hutch, "default", 2)
        assert not hooked
        ready = set(engine.boxes)
        box = await hutch.create(labels={"a": "b"}, key="once")
        assert box.id in ready
        (record,) = [record for record in hutch._keeper.boxes() if record.id == box.id]
        assert (record.owner, record.spec.labels) == (LOCAL_OWNER, {"a": "b"})
        assert record.lease is not None
        assert [seen.id for seen in hooked] == [box.id]
        assert (await hutch.create(key="once")).id == box.id
        assert (await box.exec("true")).ok
        await filled(hutch, "default", 2)
        assert len(engine.boxes) == 3


SHORT = {"short": {"inherits": "default", "ttl_sec": 1000.0}}


async def test_the_ttl_of_a_pools_box_is_counted_from_its_claim(tmp_path: Path) -> None:
    """By its own clock as by ours; a box whose clock cannot be set is not handed out (lesson 13)."""
    engine = Engine()
    async with opened(engine, tmp_path, pool={"short": 1}, profiles=SHORT) as hutch:
        await filled(hutch, "short", 1)
        (waiting,) = engine.boxes
        assert not engine.clocks
        box = await hutch.create(profile="short")
        ((answer, _, ttl),) = engine.clocks
        assert answer == box.id == waiting
        assert ttl is not None and 900 < ttl - clocks.GRACE_SECONDS <= 1000
        await filled(hutch, "short", 1)
        engine.fault = fail_once("clocks", BoxBroken("dead"))
        ready = set(engine.boxes)
        assert (await hutch.create(profile="short")).id not in ready
        assert ready - set(engine.boxes), "the broken one is gone"


async def test_another_spec_is_never_served_from_the_pool(tmp_path: Path) -> None:
    engine = Engine()
    async with opened(engine, tmp_path, pool={"default": 1}) as hutch:
        await filled(hutch, "default", 1)
        ready = set(engine.boxes)
        assert (await hutch.create(memory_mb=64)).id not in ready
        assert (await hutch.create(profile="code")).id not in ready


async def test_concurrent_claims_never_share_a_box(tmp_path: Path) -> None:
    engine = Engine()
    async with opened(engine, tmp_path, pool={"default": 3}) as hutch:
        await filled(hutch, "default", 3)
        boxes = await asyncio.gather(*(hutch.create() for _ in range(10)))
        assert len({box.id for box in boxes}) == 10


async def test_a_failing_engine_slows_the_pool_down(tmp_path: Path) -> None:
    """Back-off and breaker: no tight loop of failures."""
    engine = Engine()
    engine.fault = lambda op, _: EngineError("no") if op == "create" else None
    async with opened(engine, tmp_path, pool={"default": 1}) as hutch:
        async with asyncio.timeout(30):
            while not engine.log:
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.2)
        assert sum(op == "create" for op, _ in engine.log) == 1
        assert hutch._keeper.pool.waiting() == {"default": 0}


async def test_a_dead_keepers_pool_boxes_are_given_to_no_owner(tmp_path: Path) -> None:
    engine = Engine()
    first = Hutch(keeper=keeper_on(engine, tmp_path, pool={"default": 1}))
    async with asyncio.timeout(30):
        await first._start()
        await filled(first, "default", 1)
    await first._keeper.pool.stop()
    await crash(first._keeper)
    async with opened(engine, tmp_path) as second:
        assert [record.owner for record in second._keeper.boxes()] in ([], [POOL_OWNER])


async def test_an_owners_quota_counts_everything_it_has(tmp_path: Path) -> None:
    """Boxes, cpus, memory, disk by owner; another owner is not touched by it (B15)."""
    engine = Engine()
    quotas = {"a": {"memory_mb": 1000}, "*": {"boxes": 1}}
    async with opened(engine, tmp_path, quotas=quotas) as hutch:
        keeper = hutch._keeper
        await keeper.create(Spec(), session="s", owner="a")
        with pytest.raises(QuotaExceeded, match="memory_mb 512 of 1000") as caught:
            await keeper.create(Spec(), session="s", owner="a")
        assert caught.value.details["limit"] == 1000
        box = await keeper.create(Spec(), session="s", owner="b")
        with pytest.raises(QuotaExceeded, match="boxes"):
            await keeper.create(Spec(), session="s", owner="b")
        await keeper.destroy(box.record.id)
        await keeper.create(Spec(), session="s", owner="b")


async def test_at_the_limit_a_creation_may_wait_for_room(tmp_path: Path) -> None:
    engine = Engine()
    async with opened(engine, tmp_path, max_boxes=1, queue_sec=30) as hutch:
        first = await hutch.create()
        waiting = asyncio.create_task(hutch.create())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await first.destroy()
        async with asyncio.timeout(30):
            assert (await (await waiting).exec("true")).ok


async def test_a_session_works_in_its_current_box_and_falls_through(tmp_path: Path) -> None:
    """Current, else default, else new; and a note says so (P3, P7)."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        sessions = hutch._keeper.sessions
        first, notes = await sessions.find_or_create("s1", Spec())
        assert notes == ()
        again, notes = await sessions.find_or_create("s1", Spec())
        assert (again.record.id, notes) == (first.record.id, ())
        await sessions.set_default(first.record.id)
        other, notes = await sessions.find_or_create("s2", Spec())
        assert other.record.id != first.record.id, "the default box is busy with s1"
        assert "held by another session" in notes[0]
        await sessions.leave("s1")
        shared, notes = await sessions.find_or_create("s3", Spec())
        assert (shared.record.id, notes) == (first.record.id, ())
        await hutch.destroy(first.record.id, force=True)
        fresh, notes = await sessions.find_or_create("s3", Spec())
        assert fresh.record.id != first.record.id
        assert "destroyed" in notes[0]


async def test_a_session_finds_its_box_after_a_restart(tmp_path: Path) -> None:
    engine = Engine()
    first = Hutch(keeper=keeper_on(engine, tmp_path))
    await first._start()
    live, _ = await first._keeper.sessions.find_or_create("s1", Spec())
    await crash(first._keeper)
    async with opened(engine, tmp_path) as second:
        again, notes = await second._keeper.sessions.find_or_create("s1", Spec())
        assert (again.record.id, notes) == (live.record.id, ())


async def test_a_default_box_must_be_there(tmp_path: Path) -> None:
    async with opened(Engine(), tmp_path) as hutch:
        with pytest.raises(NotFound):
            await hutch._keeper.sessions.set_default("a" * 20)
        box = await hutch.create()
        await box.destroy()
        with pytest.raises(Gone):
            await hutch._keeper.sessions.switch("s", box.id)


async def test_a_changed_spec_of_a_live_box(tmp_path: Path) -> None:
    """Limits follow the spec, and the rest is a typed conflict that says "recreate" (B14)."""
    async with opened(Engine(), tmp_path) as hutch:
        async with hutch.box_for("user", sender_id=1, spec={"memory_mb": 64}) as box:
            pass
        async with hutch.box_for("user", sender_id=1, spec={"memory_mb": 128}) as same:
            assert (same.id, same.spec.limits.memory_mb) == (box.id, 128)
        with pytest.raises(Conflict, match="read_only_root") as caught:
            async with hutch.box_for("user", sender_id=1, spec={"read_only_root": False}):
                pass
        assert "recreated" in caught.value.remedy


async def test_volumes_are_one_owners(tmp_path: Path) -> None:
    async with opened(Engine(), tmp_path) as hutch:
        volume = await hutch.volumes.create("shared")
        assert Path(volume.path).is_dir()
        with pytest.raises(Conflict):
            await hutch.volumes.create("shared")
        other = await hutch._keeper.volumes.create("shared", owner="somebody")
        assert other.path != volume.path
        with pytest.raises(NotFound):
            await hutch.volumes.get("nope")
        box = await hutch.create(workspace="volume:shared")
        assert box.spec.workspace.source == "volume:shared"
        with pytest.raises(NotFound, match="volume nope"):
            await hutch.create(workspace="volume:nope")
        with pytest.raises(Conflict, match="in use"):
            await hutch.volumes.remove("shared")
        await box.destroy()
        await hutch.volumes.remove("shared")
        assert not Path(volume.path).exists()
        assert [each.name for each in await hutch._keeper.volumes.all(None)] == ["shared"]


async def test_idle_boxes_may_sleep_before_they_end(tmp_path: Path) -> None:
    """Smart idle times; the next use wakes it (S10)."""
    engine = Engine()
    async with opened(engine, tmp_path, idle_action="pause") as hutch:
        box = await hutch.create(idle_timeout_sec=0.01)
        keeper, live = hutch._keeper, await hutch._keeper.live(box.id)
        await box.release()
        await asyncio.sleep(0.05)
        await keeper._clocks.check(live, 1e9)
        assert live.record.state is State.PAUSED
        woken = await hutch.attach(box.id)
        assert (await woken.exec("true")).ok
        await woken.release()
        await asyncio.sleep(0.05)
        await keeper._clocks.check(live, 1e9)
        await asyncio.sleep(0.05)
        await keeper._clocks.check(live, 1e9)
        assert not engine.boxes
