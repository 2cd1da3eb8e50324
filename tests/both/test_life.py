"""A box's clocks, its scope and its end, as they are reported here and at a server alike."""

import asyncio

import pytest

from hutch.errors import Gone, Invalid, NotFound
from tests.both.forms import TIMEOUT, Open


async def test_the_time_left_counts_the_idle_clock(open_hutch: Open) -> None:
    """`remaining_sec` is what the first clock leaves, idle or ttl; use winds the idle clock up again (B13, B41)."""
    async with open_hutch() as hutch:
        async with hutch.box(idle_timeout_sec=500) as box:
            left = (await box.info()).remaining_sec
            assert left is not None and 300 < left <= 500, "a box that is held has all its idle time before it"
        async with hutch.box(idle_timeout_sec=500, ttl_sec=100) as box:
            left = (await box.info()).remaining_sec
            assert left is not None and left <= 100
        async with hutch.box(idle_timeout_sec=0) as box:
            assert (await box.info()).remaining_sec is None


async def test_an_idle_box_shows_how_its_time_runs_out(open_hutch: Open) -> None:
    """Once nobody holds it the idle clock runs, and everybody sees it run (B13)."""
    async with open_hutch() as hutch:
        box = await hutch.create(idle_timeout_sec=500)
        await box.release()
        first = (await hutch.find(box.id)).remaining_sec
        async with asyncio.timeout(TIMEOUT):
            while True:
                now = (await hutch.find(box.id)).remaining_sec
                assert first is not None and now is not None
                if now < first:
                    break
                await asyncio.sleep(0.05)
        await hutch.destroy(box.id, force=True)


async def test_a_long_list_comes_in_parts(open_hutch: Open) -> None:
    """A list costs as much as the part of it that is shown (B13)."""
    async with open_hutch() as hutch:
        made = [await hutch.create() for _ in range(3)]
        listed = [box.id for box in await hutch.boxes()]
        assert [box_id for box_id in listed if box_id in {box.id for box in made}] == [box.id for box in made]
        first = await hutch.boxes(limit=2)
        rest = await hutch.boxes(after=first[-1].id, limit=100)
        assert [box.id for box in (*first, *rest)] == listed
        for box in made:
            await box.destroy()
        with pytest.raises((NotFound, Gone)):
            await hutch.boxes(after=made[0].id)


async def test_a_task_has_a_box_of_each_kind(open_hutch: Open) -> None:
    """`{kind}:{user}:{task}` through the door its users use (S2) (lesson 49)."""
    async with open_hutch() as hutch:
        ids = []
        for kind in ("app", "execution", "app"):
            async with hutch.box_for("task", kind=kind, user="ada", task="t1") as box:
                ids.append(box.id)
                assert box.spec.labels["scope"] == f"{kind}:ada:t1"
        assert ids[0] == ids[2] != ids[1]
        async with hutch.box_for("task", kind="app", user="ada", conversation_id="t1") as box:
            assert box.id == ids[0], "the conversation is the task where none is named"
        with pytest.raises(Invalid, match="needs kind"):
            async with hutch.box_for("task", user="ada", task="t1"):
                pass
        for box_id in set(ids):
            await hutch.destroy(box_id, force=True)


async def test_a_handle_on_a_destroyed_box_says_so(open_hutch: Open) -> None:
    """ "has been destroyed" is the answer to every request; nothing that is stale (P4)."""
    async with open_hutch() as hutch:
        box = await hutch.create()
        await box.destroy()
        for late in (
            box.exec("true"), box.info(), box.state(), box.jobs(), box.usage(), box.pause(), box.resume(), box.stop(),
            box.rename("late"), box.renew(), box.change(idle_timeout_sec=5), box.files.read("x"), box.start("true"),
        ):  # fmt: skip
            with pytest.raises(Gone, match=f"box {box.id} has been destroyed"):
                await late
        await box.destroy()
        await box.release()


async def test_a_box_that_another_session_destroyed_is_gone_too(open_hutch: Open) -> None:
    """The handle was never closed, and its box ended all the same (P4)."""
    async with open_hutch() as hutch:
        box = await hutch.create()
        observed = await hutch.observe(box.id)
        await hutch.for_session("another").destroy(box.id, force=True)
        for late in (box.exec("true"), box.info(), box.pause(), observed.info(), observed.files.read("x")):
            with pytest.raises(Gone, match=f"box {box.id} has been destroyed"):
                await late
