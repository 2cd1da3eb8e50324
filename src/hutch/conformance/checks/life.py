"""A box's life: made whole or not at all, found again from its record, gone when it is destroyed (lessons 1 to 4)."""

import asyncio
from itertools import pairwise

from hutch.conformance.claims import broken, holds, raises, same
from hutch.conformance.registry import check
from hutch.conformance.workbench import Workbench
from hutch.errors import BoxBroken, EngineError, HutchError, Invalid, NotFound, Refused, Unavailable, Unsupported
from hutch.model.results import JobState
from hutch.model.spec import CheckedMount, CheckedMounts, MountMode, Order, Retention
from hutch.providers.base import Command, Instance, InstanceRecord
from hutch.providers.handles import Process

TICKER = "while read up rest </proc/uptime; do echo $up; sleep 0.02; done"


@check("life")
async def check_create(bench: Workbench) -> None:
    """A box that was created answers at once, and `check` agrees."""
    async with bench.box() as box:
        await box.check()
        await bench.answers(box)


@check("life")
async def check_record(bench: Workbench) -> None:
    """The record names provider, box and keeper, and is the same after a trip through JSON."""
    order = bench.order()
    planned = bench.provider.plan(order)
    same(InstanceRecord.from_json(planned.to_json()), planned, "the plan after a trip through JSON")
    async with bench.made(order) as box:
        record = box.record
        same(
            (record.provider, record.box_id, record.keeper), (bench.provider.name, order.box_id, order.keeper), "record"
        )
        same(InstanceRecord.from_json(record.to_json()), record, "the record after a trip through JSON")


@check("life")
async def check_plan_is_pure(bench: Workbench) -> None:
    """Planning makes nothing and answers the same when it is asked again."""
    order = bench.order()
    planned = bench.provider.plan(order)
    same(bench.provider.plan(order), planned, "the second plan")
    same(await bench.listed(planned), False, "whether a planned box is listed")
    with raises(NotFound, what="attaching to a box that was only planned"):
        await bench.provider.attach(planned, order.spec)


@check("life")
async def check_list(bench: Workbench) -> None:
    """The list has a box from its creation to its destruction, for every provider object on the engine."""
    async with bench.another() as other:
        async with bench.box() as box:
            holds(await bench.listed(box.record), "a live box is not listed")
            found = [each for each in await other.list() if each.box_id == box.record.box_id]
            same(len(found), 1, "the box in the list of another provider object")
            same((found[0].provider, found[0].keeper), (box.record.provider, box.record.keeper), "provider and keeper")
        same(await bench.listed(box.record), False, "whether a destroyed box is listed")


@check("life")
async def check_listed_record(bench: Workbench) -> None:
    """A record from the list is enough to destroy its box: orphans can be swept."""
    async with bench.box() as box, bench.another() as other:
        record = next((each for each in await other.list() if each.box_id == box.record.box_id), None)
        if record is None:
            broken("a live box is not listed")
        await other.destroy(record)
        await _is_gone(bench, box)


@check("life")
async def check_destroy(bench: Workbench) -> None:
    """When `destroy` returns the box is gone: not listed, not attachable, no command of it runs on."""
    order = bench.order()
    async with bench.made(order) as box:
        await bench.start(box, ("sleep", "7431"))
        await bench.provider.destroy(box.record)
        same(await bench.listed(box.record), False, "whether a destroyed box is listed")
        with raises(NotFound, what="attaching to a destroyed box"):
            await bench.provider.attach(box.record, order.spec)


@check("life")
async def check_destroy_from_record(bench: Workbench) -> None:
    """A provider object that never saw the box destroys it from its stored record alone (lesson 1)."""
    async with bench.box() as box, bench.another() as other:
        await bench.start(box, ("sleep", "7432"))
        await other.destroy(InstanceRecord.from_json(box.record.to_json()))
        await _is_gone(bench, box)


@check("life")
async def check_destroy_from_plan(bench: Workbench) -> None:
    """The plan, written before creation, is enough to destroy the box: a crash in between leaks nothing."""
    order = bench.order()
    planned = InstanceRecord.from_json(bench.provider.plan(order).to_json())
    async with bench.made(order) as box, bench.another() as other:
        await other.destroy(planned)
        await _is_gone(bench, box)


@check("life")
async def check_destroy_twice(bench: Workbench) -> None:
    """Destroying twice, at once too, is fine; so is destroying a box that never was."""
    async with bench.box() as box:
        await asyncio.gather(*(bench.provider.destroy(box.record) for _ in range(3)))
        await bench.provider.destroy(box.record)
    await bench.provider.destroy(bench.provider.plan(bench.order()))


@check("life")
async def check_destroy_others_live(bench: Workbench) -> None:
    """Destroying one box leaves the others alone."""
    async with bench.box() as kept:
        job = await bench.start(kept, ("cat",))
        async with bench.box():
            pass
        await bench.answers(kept)
        same((await job.info()).state, JobState.RUNNING, "state of another box's job")


@check("life")
async def check_broken(bench: Workbench) -> None:
    """On a box that is dead, `check` is BoxBroken and a command is BoxBroken or Unavailable: nothing hangs or lies."""
    async with bench.box() as box:
        await bench.provider.destroy(box.record)
        async with bench.within("answers about a dead box"):
            with raises(BoxBroken, what="checking a dead box"):
                await box.check()
            with raises(BoxBroken, Unavailable, NotFound, what="a command in a dead box"):
                await bench.run(box, ("true",))
            with raises(BoxBroken, Unavailable, NotFound, what="reading a file of a dead box"):
                await box.files.read("/etc/passwd")


@check("life")
async def check_death_during_command(bench: Workbench) -> None:
    """A command whose box dies under it comes back with an error or a verdict; it does not wait for ever."""
    async with bench.box() as box:
        call = asyncio.ensure_future(bench.run(box, ("sh", "-c", "echo up >up; sleep 7433"), timeout_sec=600))
        await bench.until(lambda: box.files.exists("up"), "the start of the command")
        await bench.provider.destroy(box.record)
        try:
            async with bench.within("the end of a command whose box is gone"):
                result = await call
        except HutchError:
            return
        holds(not result.ok, "a command that died with its box is reported as ok")


@check("life")
async def check_attach(bench: Workbench) -> None:
    """Attaching gives the same box: its files, its limits, its record; the first handle keeps working beside it."""
    order = bench.order()
    async with bench.made(order) as box:
        await box.files.write("file", b"here")
        async with bench.attached(InstanceRecord.from_json(box.record.to_json()), order.spec) as again:
            same(await again.files.read("file"), b"here", "a file of the box")
            same(again.record.box_id, box.record.box_id, "box id")
            await again.check()
            await bench.answers(box)
        await bench.answers(box)


@check("life")
async def check_attach_unknown(bench: Workbench) -> None:
    """Attaching to a box that never was is NotFound, never a new box."""
    order = bench.order()
    planned = bench.provider.plan(order)
    with raises(NotFound, what="attaching to a box that never was"):
        await bench.provider.attach(planned, order.spec)
    same(await bench.listed(planned), False, "whether such a box is listed")


@check("life")
async def check_close_keeps_box(bench: Workbench) -> None:
    """Closing a handle, or the provider object, lets go of boxes and does not end them."""
    order = bench.order()
    async with bench.another() as first:
        box = await first.create(order, first.plan(order))
        try:
            await box.files.write("file", b"stays")
            await box.close()
            await box.close()
            await first.close()
            async with bench.attached(box.record, order.spec) as again:
                same(await again.files.read("file"), b"stays", "a file of the box")
        finally:
            await bench.provider.destroy(box.record)


@check("life")
async def check_bad_image(bench: Workbench) -> None:
    """An image that is not there is an error that says so, and nothing of the box remains."""
    for kind in bench.capabilities.images:
        if kind == "host":
            continue
        missing = str(bench.scratch / "no-such-image")
        image = CheckedMount(real=missing, target="/", mode=MountMode.RO, dev=1, ino=1)
        places = CheckedMounts(image=image if kind in ("dir", "tar") else None)
        reference = missing if kind in ("dir", "tar") else "hutch.invalid/no-such-image:none"
        await _is_refused(bench, bench.order(image=f"{kind}:{reference}", places=places))
    await _is_refused(bench, bench.order(image="no-such-kind:of-image"))


@check("life")
async def check_cancelled_creation(bench: Workbench) -> None:
    """Creation that is cancelled, at whatever moment, leaves nothing (lesson 4)."""
    for delay in (0.0, 0.001, 0.003, 0.01, 0.03):
        order = bench.order()
        planned = bench.provider.plan(order)
        creation = asyncio.ensure_future(bench.provider.create(order, planned))
        await asyncio.sleep(delay)
        creation.cancel()
        try:
            box = await creation
        except asyncio.CancelledError:
            same(await bench.listed(planned), False, f"whether a box is listed whose creation ended after {delay} s")
            with raises(NotFound, what="attaching to a box whose creation was cancelled"):
                await bench.provider.attach(planned, order.spec)
        else:
            await box.close()
            await bench.provider.destroy(box.record)


@check("life")
async def check_many_at_once(bench: Workbench) -> None:
    """Several boxes are created, used and destroyed at the same time, each for itself."""

    async def one(number: int) -> bytes:
        async with bench.box() as box:
            await box.files.write("number", b"%d" % number)
            return await bench.output(box, ("cat", "number"))

    same(await asyncio.gather(*(one(number) for number in range(8))), [b"%d" % n for n in range(8)], "answers")


@check("life", needs="pause")
async def check_pause(bench: Workbench) -> None:
    """While a box is paused no process of it runs; after `resume` they go on where they were. Twice is fine."""
    async with bench.box() as box:
        job = await bench.start(box, ("sh", "-c", TICKER))
        await bench.read_until(job, b"\n")
        await box.pause()
        await box.pause()
        await asyncio.sleep(1.5)
        await box.resume()
        await box.resume()
        cursor = (await job.info()).stdout_total
        await bench.until(lambda: _grew(job, cursor + 100), "the job going on")
        chunk = await job.read(0, limit=1 << 20)
        times = [float(line) for line in chunk.data.split(b"\n")[:-1]]
        gap = max(later - earlier for earlier, later in pairwise(times))
        holds(gap > 1.2, f"the longest gap between ticks is {gap:.2f} s, though the box was paused for 1.5 s")
        await bench.answers(box)


@check("life", needs="pause")
async def check_destroy_paused(bench: Workbench) -> None:
    """A paused box can be destroyed."""
    async with bench.box() as box:
        await bench.start(box, ("sleep", "7434"))
        await box.pause()
        await bench.provider.destroy(box.record)
        same(await bench.listed(box.record), False, "whether a destroyed box is listed")


@check("life", needs="persistent")
async def check_stop_and_restore(bench: Workbench) -> None:
    """A persistent box that was stopped comes back, by another provider object too, with its files and no jobs."""
    order = bench.order(retention=Retention.PERSISTENT)
    async with bench.another() as other, bench.made(order) as box:
        await box.files.write("kept", b"kept", mode=0o600)
        await bench.start(box, ("sleep", "7435"))
        await box.close()
        await bench.provider.stop(box.record)
        again = await other.restore(order, InstanceRecord.from_json(box.record.to_json()))
        try:
            same(await again.files.read("kept"), b"kept", "a file of the box")
            same((await again.jobs(), await bench.processes(again, "7435")), ((), 0), "jobs and processes")
            await bench.answers(again)
        finally:
            await again.close()
            await other.destroy(again.record)
        same(await bench.listed(box.record), False, "whether a destroyed box is listed")


@check("life", needs="persistent")
async def check_destroy_stopped(bench: Workbench) -> None:
    """A stopped box is still listed, can be destroyed, and is gone then: nothing comes back from it."""
    order = bench.order(retention=Retention.PERSISTENT)
    async with bench.made(order) as box:
        await box.files.write("kept", b"kept")
        await box.close()
        await bench.provider.stop(box.record)
        holds(await bench.listed(box.record), "a stopped box is not listed, so nobody could sweep it")
        await bench.provider.destroy(box.record)
        same(await bench.listed(box.record), False, "whether a destroyed box is listed")
        with raises(NotFound, EngineError, what="restoring a destroyed box"):
            again = await bench.provider.restore(order, box.record)
            await bench.provider.destroy(again.record)


@check("life", needs="guest")
async def check_orphan_clock(bench: Workbench) -> None:
    """A box that nobody keeps ends by itself after its grace, and not while somebody holds on to it."""
    order = bench.order().but(orphan_grace_sec=0.5)
    async with bench.another() as keeper:
        box = await keeper.create(order, keeper.plan(order))
        try:
            await asyncio.sleep(1)
            await bench.answers(box)
            await box.close()
            await keeper.close()
            await bench.until(lambda: _left_alone(bench, box, order), "the end of a box that nobody keeps")
        finally:
            await bench.provider.destroy(box.record)


@check("life", needs="guest")
async def check_ttl(bench: Workbench) -> None:
    """A box ends at its ttl, though somebody holds on to it and a job runs."""
    async with bench.box(ttl_sec=0.5) as box:
        await bench.start(box, ("sleep", "7436"))
        await bench.until(lambda: _is_dead(box), "the end of a box at its ttl")


@check("life", needs="guest")
async def check_set_clocks(bench: Workbench) -> None:
    """Clocks that a later keeper sets hold as those of the creation do: the ttl, and the life without any keeper."""
    async with bench.box(ttl_sec=3600.0) as box:
        await box.set_clocks(ttl_sec=0.5)
        await bench.until(lambda: _is_dead(box), "the end of a box at the ttl that was set later")
    order = bench.order()
    async with bench.another() as keeper:
        box = await keeper.create(order, keeper.plan(order))
        try:
            await box.set_clocks(orphan_grace_sec=0.5, ttl_sec=0)
            await box.close()
            await keeper.close()
            short = order.but(orphan_grace_sec=0.5)
            await bench.until(lambda: _left_alone(bench, box, short), "the end of a box by a grace that was set later")
        finally:
            await bench.provider.destroy(box.record)


async def _grew(job: Process, count: int) -> bool:
    return (await job.info()).stdout_total >= count


async def _left_alone(bench: Workbench, box: Instance, order: Order) -> bool:
    """Return whether the box is gone after a while. Each check renews its grace period, so the checks are further apart
    than that."""
    await asyncio.sleep(order.orphan_grace_sec * 2)
    try:
        async with bench.attached(box.record, order.spec) as again:
            await again.check()
    except (NotFound, BoxBroken):
        return True
    return False


async def _is_dead(box: Instance) -> bool:
    try:
        await box.check()
    except (BoxBroken, NotFound):
        return True
    except Unavailable:
        return False  # the box may be ending just now
    return False


async def _is_gone(bench: Workbench, box: Instance) -> None:
    """Fail unless the box is gone for the old handle too, because a list may forget what still runs."""
    same(await bench.listed(box.record), False, "whether the destroyed box is listed")
    async with bench.within("an answer about a destroyed box"):
        with raises(BoxBroken, Unavailable, NotFound, what="a command in a box that was destroyed"):
            await box.run(Command(command=("true",), timeout_sec=bench.patience))


async def _is_refused(bench: Workbench, order: Order) -> None:
    planned = bench.provider.plan(order)
    what = f"creating a box of the image {order.spec.image}"
    with raises(NotFound, Refused, Unsupported, Invalid, EngineError, what=what):
        box = await bench.provider.create(order, planned)
        await bench.provider.destroy(box.record)
    same(await bench.listed(planned), False, "whether the refused box is listed")
