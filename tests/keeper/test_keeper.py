"""A box's life in the keeper: created once, used under its lease, ended on one path, never leaked."""

import asyncio
import time
from pathlib import Path

import pytest

from hutch.errors import (
    BoxBroken,
    BoxBusy,
    Conflict,
    Disabled,
    EngineError,
    Gone,
    HutchError,
    Invalid,
    LeaseLost,
    NotFound,
    QuotaExceeded,
    Unavailable,
)  # fmt: skip
from hutch.keeper.boxes import clocks
from hutch.keeper.boxes.records import BoxRecord
from hutch.keeper.embedded import Hutch
from hutch.model.boxes import State
from hutch.model.spec import Spec
from tests.keeper.faulty import Engine, fail_once
from tests.keeper.faulty_keeper import keeper_on, opened


async def test_a_box_is_created_used_and_destroyed(tmp_path: Path) -> None:
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        async with hutch.box() as box:
            assert (await box.exec("true")).ok
            assert await box.state() is State.RUNNING
            assert set(engine.boxes) == {box.id}
        assert not engine.boxes
        with pytest.raises(Gone, match="destroyed by a call"):
            await hutch.attach(box.id)
        with pytest.raises(NotFound):
            await hutch.attach("a" * 20)
        assert [event.new or event.kind for event in await hutch.events()] == [
            "creating", "running", "stopping", "gone",
        ]  # fmt: skip


@pytest.mark.parametrize("step", ["create", "boot"])
async def test_a_failed_creation_leaves_nothing_and_frees_the_quota(step: str, tmp_path: Path) -> None:
    """Proves (lesson 4, lesson 8)."""
    engine = Engine()
    async with opened(engine, tmp_path, max_boxes=1) as hutch:
        for _ in range(3):
            engine.fault = fail_once(step, EngineError("no"))
            with pytest.raises(EngineError, match="no"):
                await hutch.create()
        assert not engine.boxes
        assert not hutch._keeper.boxes()
        await hutch.create()


async def test_a_cancelled_creation_leaves_nothing(tmp_path: Path) -> None:
    """Destroyed during a slow boot (lesson 4)."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        engine.delay = 0.05
        creating = asyncio.create_task(hutch.create())
        while not engine.log:
            await asyncio.sleep(0.005)
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        assert not engine.boxes
        assert not hutch._keeper.boxes()


async def test_one_slow_creation_does_not_block_others(tmp_path: Path) -> None:
    """Single-flight for each key, no lock for all (lesson 9)."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        gate = asyncio.Event()
        slow_step, engine.step = engine.step, None  # type: ignore[assignment]

        async def step(op: str, box_id: object) -> None:
            if op == "create" and len(engine.log) == 0:
                engine.log.append((op, box_id))  # type: ignore[arg-type]
                await gate.wait()
            else:
                await slow_step(op, box_id)  # type: ignore[arg-type]

        engine.step = step  # type: ignore[assignment]
        slow = asyncio.create_task(hutch.create())
        while not engine.log:
            await asyncio.sleep(0.005)
        other = await hutch.create()
        assert (await other.exec("true")).ok
        assert not slow.done()
        gate.set()
        await slow


async def test_the_same_key_gives_one_box(tmp_path: Path) -> None:
    """Idempotent creation: concurrent retries and later ones."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        engine.delay = 0.01
        boxes = await asyncio.gather(*(hutch.create(key="order-1") for _ in range(10)))
        assert len({box.id for box in boxes}) == 1
        assert (await hutch.create(key="order-1")).id == boxes[0].id
        assert (await hutch.create(key="order-2")).id != boxes[0].id


async def test_the_quota_counts_creations_under_way(tmp_path: Path) -> None:
    """Enforced at creation, also when many come at once (B15)."""
    engine = Engine()
    async with opened(engine, tmp_path, max_boxes=3) as hutch:
        engine.delay = 0.01
        results = await asyncio.gather(*(hutch.create() for _ in range(8)), return_exceptions=True)
        assert sum(isinstance(result, QuotaExceeded) for result in results) == 5
        assert len(engine.boxes) == 3


async def test_a_takeover_ends_the_old_handle_at_once(tmp_path: Path) -> None:
    """However late the old holder comes, its epoch is old (lesson 5)."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        box = await hutch.create()
        old_session, hutch.session = hutch.session, "another"
        with pytest.raises(BoxBusy) as busy:
            await hutch.attach(box.id)
        assert busy.value.retry_after
        taken = await hutch.attach(box.id, takeover=True)
        assert (await taken.exec("true")).ok
        with pytest.raises(LeaseLost):
            await box.exec("true")
        await taken.release()
        hutch.session = old_session
        assert (await (await hutch.attach(box.id)).exec("true")).ok


async def test_destroying_twice_at_once_is_one_destruction(tmp_path: Path) -> None:
    """One transition; the second caller waits and finds it gone (lesson 3)."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        box = await hutch.create()
        engine.delay = 0.01
        await asyncio.gather(*(hutch.destroy(box.id) for _ in range(5)), box.destroy())
        assert [op for op, _ in engine.log].count("destroy") == 1
        await hutch.destroy(box.id)


async def test_a_box_that_is_being_destroyed_cannot_be_used(tmp_path: Path) -> None:
    """The message says what state excludes the use (P4)."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        box = await hutch.create()
        engine.delay = 0.05
        ending = asyncio.create_task(hutch.destroy(box.id))
        while ("destroy", box.id) not in engine.log:
            await asyncio.sleep(0.005)
        with pytest.raises(Conflict, match="is being destroyed"):
            await box.exec("true")
        await ending


async def test_an_engine_that_refuses_to_destroy_makes_an_error_not_a_loop(tmp_path: Path) -> None:
    """Bounded tries; the box stays visible and counted while its resource lives (P9)."""
    engine = Engine()
    async with opened(engine, tmp_path, max_boxes=1) as hutch:
        box = await hutch.create()
        engine.fault = lambda op, _: EngineError("device busy") if op == "destroy" else None
        with pytest.raises(EngineError):
            await hutch.destroy(box.id)
        assert [op for op, _ in engine.log].count("destroy") == 3
        (record,) = hutch._keeper.boxes()
        assert record.state is State.ERROR
        assert "device busy" in record.reason
        with pytest.raises(QuotaExceeded):
            await hutch.create()
        engine.fault = lambda op, _: None
        await hutch.destroy(box.id)
        assert not engine.boxes


async def test_a_broken_box_becomes_an_error_with_its_reason(tmp_path: Path) -> None:
    """A failed operation has the box looked at once (lesson 14)."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        box = await hutch.create()
        engine.broken.add(box.id)  # type: ignore[arg-type]
        with pytest.raises(BoxBroken):
            await box.exec("true")
        assert await box.state() is State.ERROR
        with pytest.raises(BoxBroken, match="encountered an error"):
            await box.exec("true")


async def test_an_unreachable_engine_destroys_nothing(tmp_path: Path) -> None:
    """A box is never destroyed on the ground alone that it cannot be reached."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        box = await hutch.create()
        engine.fault = lambda op, _: Unavailable("no route") if op in ("run", "check") else None
        with pytest.raises(Unavailable):
            await box.exec("true")
        assert await box.state() is State.UNKNOWN
        assert set(engine.boxes) == {box.id}
        engine.fault = lambda op, _: Unavailable("no route") if op == "attach" else None
        with pytest.raises(Unavailable, match="cannot be reached"):
            await box.exec("true")
        assert await box.state() is State.UNKNOWN
        engine.fault = lambda op, _: None
        assert (await box.exec("true")).ok, "the engine is back, and so is the box"


async def test_a_box_that_was_lost_while_it_could_not_be_reached_is_an_error(tmp_path: Path) -> None:
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        box = await hutch.create()
        engine.fault = lambda op, _: Unavailable("no route") if op in ("run", "check") else None
        with pytest.raises(Unavailable):
            await box.exec("true")
        engine.fault = lambda op, _: None
        engine.boxes.clear()
        with pytest.raises(BoxBroken, match="lost"):
            await box.exec("true")
        assert await box.state() is State.ERROR


async def test_pause_and_wake_by_use(tmp_path: Path) -> None:
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        box = await hutch.create()
        await box.pause()
        await box.pause()
        assert await box.state() is State.PAUSED
        assert (await box.exec("true")).ok
        assert await box.state() is State.RUNNING
        assert [op for op, _ in engine.log].count("resume") == 1


async def test_hooks_see_every_box_come_and_go(tmp_path: Path) -> None:
    """Created after the lease, destroyed on every path (P10)."""
    engine = Engine()
    seen: list[str] = []
    async with opened(engine, tmp_path) as hutch:

        async def came(record: BoxRecord) -> None:
            assert record.lease is not None
            seen.append("created")

        async def went(record: BoxRecord) -> None:
            seen.append("destroyed")

        hutch._keeper.hooks.created.append(came)
        hutch._keeper.teardown.destroyed_hooks.append(went)
        await (await hutch.create()).destroy()
        await hutch.create()
    assert seen == ["created", "destroyed", "created", "destroyed"]


async def test_a_failed_created_hook_fails_the_creation(tmp_path: Path) -> None:
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:

        async def refuse(record: BoxRecord) -> None:
            raise Invalid("not today")

        hutch._keeper.hooks.created.append(refuse)
        with pytest.raises(Invalid, match="not today"):
            await hutch.create()
        assert not engine.boxes


async def test_switched_off_makes_nothing(tmp_path: Path) -> None:
    """No process, no connection, no file (B20)."""
    engine = Engine()
    async with opened(engine, tmp_path, enabled=False) as hutch:
        with pytest.raises(Disabled):
            await hutch.create()
    assert not engine.log


async def test_an_empty_command_is_refused_when_it_is_run(tmp_path: Path) -> None:
    """Proves (B7)."""
    async with opened(Engine(), tmp_path) as hutch, hutch.box() as box:
        for empty in ("", "  \n", [], [""]):
            with pytest.raises(Invalid, match="empty"):
                await box.exec(empty)


async def test_a_clamped_timeout_is_reported(tmp_path: Path) -> None:
    """Proves (B4)."""
    async with opened(Engine(), tmp_path) as hutch, hutch.box() as box:
        result = await box.exec("true", timeout=600)
        assert result.notes == ("timeout_sec 600 → 120: maximum of the box's profile",)


async def test_a_conversation_finds_its_box_again(tmp_path: Path) -> None:
    """First use creates, later ones reuse, other values get their own (B8, B9, S3)."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        async with hutch.box_for("{chat}_{user}", chat=7, user=3) as first:
            pass
        async with hutch.box_for("{chat}_{user}", chat=7, user=3) as again:
            assert again.id == first.id
        async with hutch.box_for("{chat}_{user}", chat=7, user=4) as other:
            assert other.id != first.id
        many = [hutch.box_for("chat", launcher_type="g", launcher_id=1) for _ in range(5)]
        boxes = await asyncio.gather(*(one.__aenter__() for one in many))
        assert len({box.id for box in boxes}) == 1


async def test_a_broken_box_is_replaced_with_a_note(tmp_path: Path) -> None:
    """Unhealthy boxes are replaced, and a note says that state was lost (S3)."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        async with hutch.box_for("user", sender_id=1) as first:
            assert first.notes == ()
        live = await hutch._keeper.live(first.id)
        live.last_used = live.last_checked = -1e9
        engine.broken.add(live.record.id)
        async with hutch.box_for("user", sender_id=1) as second:
            assert second.id != first.id
            assert "lost" in second.notes[0]
        assert set(engine.boxes) == {second.id}


async def test_an_unreachable_box_is_not_replaced(tmp_path: Path) -> None:
    """A box is never destroyed because its engine is away: the caller gets an error, and finds it again later."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        async with hutch.box_for("user", sender_id=1) as first:
            pass
        live = await hutch._keeper.live(first.id)
        live.last_used = live.last_checked = -1e9
        engine.fault = lambda op, _: Unavailable("no route") if op in ("check", "attach") else None
        for _ in range(2):  # It is `unknown` from the first time on.
            with pytest.raises(Unavailable, match="cannot be reached"):
                async with hutch.box_for("user", sender_id=1):
                    raise AssertionError("the box was replaced")
        assert set(engine.boxes) == {first.id}
        engine.fault = lambda op, _: None
        async with hutch.box_for("user", sender_id=1) as again:
            assert (again.id, again.notes) == (first.id, ())


async def test_health_is_not_checked_on_every_call(tmp_path: Path) -> None:
    """Proves (lesson 14)."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        for _ in range(5):
            async with hutch.box_for("user", sender_id=1):
                pass
        assert ("check", next(iter(engine.boxes))) not in engine.log


@pytest.mark.parametrize("steps", range(0, 30, 2))
async def test_a_creation_cancelled_at_any_moment_leaves_nothing(steps: int, tmp_path: Path) -> None:
    """Also while the store is writing, when the record is there and the caller does not know it yet (lesson 4)."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        creating = asyncio.create_task(hutch.create())
        for _ in range(steps):
            await asyncio.sleep(0)
        creating.cancel()
        (outcome,) = await asyncio.gather(creating, return_exceptions=True)
        if not isinstance(outcome, BaseException):
            await outcome.destroy()
        assert not engine.boxes
        assert not hutch._keeper.boxes()
        assert not await hutch._keeper.store.all()


async def test_a_used_box_is_never_given_to_another_session_as_new(tmp_path: Path) -> None:
    """A released box is found again only by who may: not by another owner, and never as a fresh one (lesson 7)."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        keeper = hutch._keeper
        used = await hutch.create()
        await used.release()
        fresh = await keeper.create(Spec(), session="another", owner="somebody")
        assert fresh.record.id != used.id
        working, _ = await keeper.sessions.find_or_create("another", Spec(), owner="somebody")
        assert working.record.id != used.id
        again = await hutch.create()
        assert again.id not in (used.id, fresh.record.id)


async def test_looking_never_fails_whatever_the_engine_does(tmp_path: Path) -> None:
    """Listings answer from the keeper's own memory, also between a loss and its discovery (lesson 11)."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        box = await hutch.create()
        engine.fault = lambda op, _: Unavailable("engine is gone")
        assert [record.id for record in hutch._keeper.boxes()] == [box.id]
        with pytest.raises(Unavailable):
            await box.exec("true")
        (record,) = hutch._keeper.boxes()
        assert record.state is State.UNKNOWN
        assert record.reason
        engine.fault = lambda op, _: None


async def test_our_expiry_is_passed_to_the_engine(tmp_path: Path) -> None:
    """A box's own clocks are part of its order; no engine ends it before our grace is over (S4, lesson 13)."""
    engine = Engine()
    async with opened(engine, tmp_path, orphan_grace_sec=77) as hutch:
        await hutch.create(ttl_sec=1234, idle_timeout_sec=600)
        (order,) = engine.orders
        assert (order.orphan_grace_sec, order.spec.idle_timeout_sec) == (77, 600)
        assert 1200 < order.spec.ttl_sec - clocks.GRACE_SECONDS <= 1234
        (record,) = hutch._keeper.boxes()
        assert (record.spec.ttl_sec, engine.clocks) == (1234, []), "what the order says is not said twice"


async def test_a_restored_box_has_the_rest_of_its_ttl(tmp_path: Path) -> None:
    """Its life is counted from its creation, by its own clock as by ours (lesson 13)."""
    engine = Engine()
    first = Hutch(keeper=keeper_on(engine, tmp_path))
    box = await first.create(ttl_sec=1000, retention="persistent")
    await first.close()
    async with opened(engine, tmp_path) as hutch:
        hutch._keeper._live[box.id].record = hutch._keeper._live[box.id].record.but(created_at=time.time() - 600)
        await hutch.attach(box.id, takeover=True)
        assert 300 < engine.restored[-1].spec.ttl_sec - clocks.GRACE_SECONDS <= 400


async def test_a_box_destroyed_while_it_is_made_is_gone_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The boot fails under the destroyer's hands, and there is nothing left for it to clean (lesson 4)."""
    engine = Engine()
    async with opened(engine, tmp_path) as hutch:
        engine.delay = 0.05
        creating = asyncio.create_task(hutch.create())
        while "boot" not in [op for op, _ in engine.log]:
            await asyncio.sleep(0.005)
        (record,) = hutch._keeper.boxes()
        engine.fault = lambda op, _: Unavailable("the connection to the guest was lost") if op == "boot" else None
        await hutch.destroy(record.id)
        (outcome,) = await asyncio.gather(creating, return_exceptions=True)
        assert isinstance(outcome, HutchError)
        assert not engine.boxes
        assert not hutch._keeper.boxes()
        assert "not removed" not in capsys.readouterr().err
