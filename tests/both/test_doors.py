"""Hooks, creation without waiting, an admin's handle, metrics, moving between conversations: the same in every form."""

import asyncio
import os

import pytest

from hutch import Box
from hutch.errors import Conflict, Gone, Invalid, LeaseLost, Refused
from hutch.model.boxes import Event, State
from hutch.model.results import JobState
from tests.both.forms import TIMEOUT, Open


async def test_created_hooks_run_until_they_have_succeeded_once(open_hutch: Open) -> None:
    """The hook gets the leased box before its caller does; what it did is there, once per box (P10)."""
    seen: list[str] = []

    async def prepare(box: Box) -> None:
        seen.append(box.id)
        await box.files.write("prepared", "yes")

    chat = os.urandom(4).hex()
    async with open_hutch() as hutch:
        await hutch.on_created(prepare)
        async with hutch.box() as box:
            assert await box.files.read("prepared") == b"yes"
            assert (await box.info()).created_hooks_done
            await hutch.attach(box.id)
        async with hutch.box_for("{chat}", chat=chat) as mine:
            pass
        async with hutch.box_for("{chat}", chat=chat) as again:
            assert again.id == mine.id and await again.files.read("prepared") == b"yes"
            await again.destroy()
        assert seen == [box.id, mine.id]


async def test_a_created_hook_that_fails_is_repeated(open_hutch: Open) -> None:
    """Its error is the caller's and leaves no new box behind; for a box that exists it runs again later (P10)."""
    failing = True

    async def prepare(box: Box) -> None:
        if failing:
            raise Invalid("not today")

    async with open_hutch() as hutch:
        old = await hutch.create()
        await hutch.on_created(prepare)
        with pytest.raises(Invalid, match="not today"):
            await hutch.create()
        with pytest.raises(Invalid, match="not today"):
            await hutch.attach(old.id)
        assert [info.id for info in await hutch.boxes()] == [old.id]
        failing = False
        assert (await (await hutch.attach(old.id)).info()).created_hooks_done
        await hutch.destroy(old.id, force=True)


async def test_created_hooks_are_safe_under_concurrency(open_hutch: Open) -> None:
    """Ten callers of one conversation at once: one box, one run of the hook (P10)."""
    seen: list[str] = []

    async def prepare(box: Box) -> None:
        await asyncio.sleep(0.05)
        seen.append(box.id)

    async with open_hutch() as hutch:
        await hutch.on_created(prepare)
        chat = os.urandom(4).hex()

        async def use() -> None:
            async with hutch.box_for("{chat}", chat=chat) as box:
                assert seen == [box.id]

        await asyncio.gather(*(use() for _ in range(10)))
        await hutch.destroy(seen[0], force=True)


async def test_destroyed_hooks_hear_of_every_end(open_hutch: Open) -> None:
    """A call, the end of a `with`, a clock: each box's end is one event, with its cause (P10)."""
    answer: asyncio.Queue[Event] = asyncio.Queue()
    async with open_hutch() as hutch:

        async def broken(event: Event) -> None:
            raise RuntimeError("a hook that fails stops nothing")

        await hutch.on_destroyed(broken)
        await hutch.on_destroyed(answer.put)
        called = await hutch.create()
        await called.destroy()
        async with hutch.box() as left:
            pass
        timed = await hutch.create(ttl_sec=1)
        events = [await asyncio.wait_for(answer.get(), TIMEOUT) for _ in range(3)]
        assert [(event.box_id, event.cause) for event in events] == [
            (called.id, "call"), (left.id, "call"), (timed.id, "ttl"),
        ]  # fmt: skip


async def test_a_box_that_nobody_waited_for(open_hutch: Open) -> None:
    """`create(wait=False)` returns a handle on a box that boots in the background (P5, P19)."""
    seen: list[str] = []

    async def prepare(box: Box) -> None:
        seen.append(box.id)

    async with open_hutch() as hutch:
        await hutch.on_created(prepare)
        box = await hutch.create(wait=False, name=f"n{os.urandom(4).hex()}")
        assert await box.state() in (State.CREATING, State.RUNNING)
        await box.ready(TIMEOUT)
        assert await box.state() is State.RUNNING and seen == [box.id]
        assert (await box.exec("echo up")).stdout == "up\n"
        await box.ready()
        await box.destroy()
        with pytest.raises(Gone):
            await box.ready()
        with pytest.raises(Invalid):
            await hutch.create(wait=False, memory_mb=-1)


async def test_an_admin_works_beside_the_holder(open_hutch: Open) -> None:
    """An admin's shell from Python needs no lease, takes none away, and an ordinary key has none (P8, P19)."""
    async with open_hutch(session="holder") as holder, open_hutch(session="operator") as operator:
        box = await holder.create()
        try:
            admin = await operator.administer(box.id)
        except Refused:
            assert (await holder.status()).available
            await box.destroy()
            return
        assert (await admin.exec("echo admin > f; cat f")).stdout == "admin\n"
        assert await admin.files.read("f") == b"admin\n"
        job = await admin.start("cat")
        await job.write("typed\n")
        assert (await job.read(wait=TIMEOUT)).text == "typed\n"
        info = await box.info()
        assert info.lease is not None and info.lease.holder == "holder"
        assert (await box.exec("cat f")).stdout == "admin\n"
        with pytest.raises(LeaseLost):
            await admin.renew()
        await admin.release()
        assert (await box.info()).lease == info.lease
        await (await operator.administer(box.id)).destroy()
        with pytest.raises(Gone):
            await box.exec("true")


async def test_info_shows_the_jobs(open_hutch: Open) -> None:
    """Info of one box has its managed processes; lists do not ask the boxes (B13)."""
    async with open_hutch() as hutch, hutch.box() as box:
        assert (await box.info()).jobs == ()
        job = await box.start("sleep 600", name="server")
        (shown,) = (await box.info()).jobs or ()
        assert (shown.id, shown.name, shown.state) == (job.id, "server", JobState.RUNNING)
        assert (await (await hutch.observe(box.id)).info()).jobs == (shown,)
        (listed,) = [info for info in await hutch.boxes() if info.id == box.id]
        assert listed.jobs is None
        await box.pause()
        assert (await box.info()).jobs is None


async def test_metrics_per_kind_and_in_total(open_hutch: Open) -> None:
    """Active, created, reused and cleaned boxes of this owner, by kind and in total, as one call (S9, S12)."""
    kind, chat = f"k{os.urandom(4).hex()}", os.urandom(4).hex()
    async with open_hutch() as hutch:
        before = (await hutch.metrics()).total
        for _ in range(3):
            async with hutch.box_for("{chat}", kind=kind, chat=chat) as box:
                pass
        async with hutch.box(profile="code"):
            now = await hutch.metrics()
            counts = now.kinds[kind]
            assert (counts.active, counts.created, counts.reused, counts.cleaned) == (1, 1, 2, 0)
            assert now.kinds["code"].active == 1
            assert (now.total.created, now.total.reused) == (before.created + 2, before.reused + 2)
        await hutch.destroy(box.id, force=True)
        after = await hutch.metrics()
        assert (after.kinds[kind].active, after.kinds[kind].cleaned) == (0, 1)
        assert after.total.cleaned == before.cleaned + 2


async def test_a_box_moves_to_another_conversation(open_hutch: Open) -> None:
    """Files and jobs go with it; the first conversation gets a new box, and an occupied one is a conflict (S10)."""
    first, second = os.urandom(4).hex(), os.urandom(4).hex()
    async with open_hutch() as hutch:
        async with hutch.box_for("{chat}", chat=first) as box:
            await box.files.write("notes", "mine")
            job = await box.start("sleep 600")
            await box.move_to("{chat}", chat=second)
            assert box.id == (await hutch.find(box.id)).id
            assert (await box.info()).spec.labels["scope"] == second
        async with hutch.box_for("{chat}", chat=second) as moved:
            assert moved.id == box.id and await moved.files.read("notes") == b"mine"
            assert [each.id for each in await moved.jobs()] == [job.id]
        async with hutch.box_for("{chat}", chat=first) as fresh:
            assert fresh.id != box.id and not await fresh.files.exists("notes")
            with pytest.raises(Conflict, match="has a box already"):
                await fresh.move_to("{chat}", chat=second)
            with pytest.raises(Invalid):
                await fresh.move_to("{chat}")
            assert (await fresh.exec("true")).ok
        for each in (box.id, fresh.id):
            await hutch.destroy(each, force=True)


async def test_a_plan_is_what_a_box_would_be(open_hutch: Open) -> None:
    """Limits, network and adjustments of a box that nobody creates (B6, lesson 50)."""
    async with open_hutch() as hutch:
        planned = await hutch.plan(memory_mb=300, profile="code")
        assert await hutch.boxes() == ()
        async with hutch.box(memory_mb=300, profile="code") as box:
            assert planned == box.spec
        with pytest.raises(Invalid):
            await hutch.plan(memory_mb=-1)


async def test_status_shows_profile_and_clocks(open_hutch: Open) -> None:
    """What a status card shows: the profile of new boxes and how long they live (B13, B41)."""
    async with open_hutch() as hutch, hutch.box() as box:
        status = await hutch.status()
        spec = (await box.info()).spec
        assert (status.profile, status.idle_timeout_sec, status.ttl_sec) == (
            spec.profile, spec.idle_timeout_sec, spec.ttl_sec,
        )  # fmt: skip
