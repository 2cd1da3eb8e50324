"""Leases, current boxes and conversations: the same in every form of Hutch (see conftest.py)."""

import asyncio
import os

import pytest

from hutch.errors import (
    BoxBusy,
    Conflict,
    Invalid,
    LeaseLost,
)
from tests.both.forms import TIMEOUT, Open


async def test_leases_between_sessions(open_hutch: Open) -> None:
    """Busy for others, takeover, and an old handle is refused however late it comes (P6)."""
    async with open_hutch() as hutch:
        first, second = hutch.for_session("one"), hutch.for_session("two")
        assert (first.session, second.session) == ("one", "two")
        box = await first.create()
        try:
            with pytest.raises(BoxBusy):
                await second.attach(box.id)
            with pytest.raises(BoxBusy):
                await second.destroy(box.id)
            taken = await second.attach(box.id, takeover=True)
            with pytest.raises(LeaseLost):
                await box.exec("true")
            with pytest.raises(LeaseLost):
                await box.renew()
            with pytest.raises(LeaseLost):
                await box.destroy()
            await taken.release()
            with pytest.raises(LeaseLost):
                await box.exec("true")
            with pytest.raises(LeaseLost):
                await taken.exec("true")
            again = await first.attach(box.id)
            assert (await again.exec("true")).ok
            await again.renew()
            lease = (await again.info()).lease
            assert lease is not None and lease.holder == "one" and lease.seconds == 600
        finally:
            await hutch.destroy(box.id, force=True)


async def test_leaving_a_box_that_was_taken_over_does_not_end_it(open_hutch: Open) -> None:
    """The old holder's handle is worth nothing, at its end either (lesson 5)."""
    async with open_hutch() as hutch:
        second = hutch.for_session("two")
        async with hutch.for_session("one").box() as box:
            taken = await second.attach(box.id, takeover=True)
        assert (await taken.exec("true")).ok
        await taken.destroy()


async def test_looking_takes_no_lease(open_hutch: Open) -> None:
    """An observer reads and extends nothing; every change is refused (P8)."""
    async with open_hutch() as hutch:
        box = await hutch.create()
        try:
            await box.files.write("f", "seen")
            job = await box.start("echo told; sleep 1000")
            await job.read(wait=TIMEOUT)
            await box.release()
            before = await hutch.find(box.id)
            seen = await hutch.observe(box.id)
            assert await seen.files.read("f") == b"seen"
            assert (await (await seen.job(job.id)).read()).data == b"told\n"
            assert [each.id for each in await seen.jobs()] == [job.id]
            assert (await seen.info()).lease is None
            for refused in (
                seen.exec("true"), seen.start("true"), seen.files.write("f", "x"), seen.files.remove("f"),
                seen.pause(), seen.rename("x"), seen.destroy(), (await seen.job(job.id)).signal(9),
                seen.change(memory_mb=1), seen.forget(job.id),
            ):  # fmt: skip
                with pytest.raises(PermissionError):
                    await refused
            after = await hutch.find(box.id)
            assert (after.used_at - before.used_at < 0.001, after.lease, after.epoch) == (True, None, before.epoch)
        finally:
            await hutch.destroy(box.id, force=True)


async def test_a_conversation_finds_its_box(open_hutch: Open) -> None:
    """Each scope has its own box; leaving releases it; a missing value is an error (lesson 33)."""
    values = {"chat": 7, "user": os.urandom(4).hex()}
    async with open_hutch() as hutch:
        async with hutch.box_for("{chat}_{user}", spec={"memory_mb": 200}, **values) as box:
            await box.files.write("f", "mine")
            assert box.spec.limits.memory_mb == 200
        assert (await hutch.find(box.id)).lease is None
        async with hutch.box_for("{chat}_{user}", spec={"memory_mb": 300}, **values) as again:
            assert (again.id, await again.files.read("f")) == (box.id, b"mine")
            assert again.spec.limits.memory_mb == 300, "limits follow (B14)"
        with pytest.raises(Conflict):
            async with hutch.box_for("{chat}_{user}", spec={"network": "on"}, **values):
                pass
        async with hutch.box_for("{chat}_{user}", kind="other", **values) as other:
            assert other.id != box.id
        with pytest.raises(Invalid):
            async with hutch.box_for("{chat}_{user}", chat=1):
                pass
        for each in (box, other):
            await hutch.destroy(each.id)


async def test_current_default_and_working(open_hutch: Open) -> None:
    """A session's current box, the owner's default, and what a call falls through to, with a note (P3, P6, P7)."""
    async with open_hutch() as hutch:
        mine = hutch.for_session(f"s{os.urandom(4).hex()}")
        assert await mine.current() is None
        box = await mine.working(memory_mb=128)
        assert await mine.current() == box.id
        assert (await mine.working()).id == box.id
        await hutch.set_default(box.id)
        assert await hutch.default() == box.id
        await mine.leave()
        assert await mine.current() is None
        other = hutch.for_session(f"t{os.urandom(4).hex()}")
        assert (await other.switch(box.id)).id == box.id
        fresh = await mine.working(memory_mb=128)
        assert fresh.id != box.id
        assert any("held by another session" in note for note in fresh.notes)
        await hutch.destroy(fresh.id, force=True)
        after = await mine.working(memory_mb=128)
        assert any("files are lost" in note for note in after.notes)
        for each in (box, after):
            await hutch.destroy(each.id, force=True)


async def test_a_key_makes_a_retry_safe(open_hutch: Open) -> None:
    async with open_hutch() as hutch:
        key = f"{os.urandom(8).hex()} é\r\nX-Evil: 1 %41"
        one, two = await asyncio.gather(hutch.create(key=key), hutch.create(key=key))
        assert one.id == two.id
        await one.destroy()
