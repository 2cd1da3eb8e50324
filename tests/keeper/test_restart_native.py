"""Native boxes after the end of their keeper: it never returns, it comes back, or another one lives beside it."""

import asyncio
import json
import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hutch.errors import Gone, HeldElsewhere, NotFound
from hutch.keeper.embedded import Hutch
from hutch.keeper.takeover.prune import prune
from hutch.linux import cgroup_files
from hutch.model.boxes import State
from hutch.model.results import JobState
from hutch.model.spec import Order, Retention
from hutch.providers.base import InstanceRecord
from hutch.providers.guest_client.link import Link
from hutch.providers.native.instance import NativeInstance
from hutch.providers.native.provider import NativeProvider
from hutch.providers.native.spawn.client import PendingRequest
from tests.keeper.killed_keepers import GRACE, PATIENCE, House, Resident, house, spawners_of
from tests.providers.native.boxes import alive, order, until

pytestmark = pytest.mark.slow

HOLDER = Path(__file__).with_name("crash_holder.py")
NUMBERS = "i=0; while :; do echo $i; i=$((i+1)); sleep 0.02; done"
SMALL: dict[str, Any] = {"memory_mb": 64, "disk_mb": 16}


def holder(place: House, grace: float = GRACE) -> Resident:
    return place.resident(HOLDER, str(grace))


def make(keeper: Resident, **spec: object) -> str:
    return keeper.ask("make " + json.dumps({**SMALL, **spec}))


async def pruned(place: House) -> set[str]:
    """Return the names of the boxes that `hutch prune` removed."""
    found = [leftover async for leftover in prune(place.config())]
    assert not [leftover for leftover in found if leftover.problem], found
    return {leftover.name for leftover in found if leftover.kind == "box"}


async def destroy_all(place: House) -> None:
    async with place.opened() as hutch:
        for record in hutch._keeper.boxes():
            await hutch.destroy(record.id)
    assert place.traces() == []


# --- a keeper that never returns -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sweeper", ["prune", "keeper"])
async def test_a_box_whose_keeper_never_returns_ends_itself(sweeper: str) -> None:
    """After its grace the guest ends with everything in the box, and the rest is swept."""
    with house() as place:
        keeper = holder(place, grace=0.5)
        box = make(keeper)
        keeper.ask(f"write {box} note.txt hello")
        keeper.ask(f"start {box} {NUMBERS}")
        keeper.kill()
        assert place.empty() == [], "the box outlives its grace"
        if sweeper == "prune":
            assert await pruned(place) == {box}
        async with place.opened() as hutch:
            assert hutch._keeper.boxes() == ()
            with pytest.raises(Gone):
                await hutch.attach(box)
        assert place.traces() == []


@pytest.mark.parametrize("stems", [False, True])
async def test_an_order_that_outlives_its_keeper_leaves_no_box(stems: bool) -> None:
    """The next keeper finds the intent, and nothing to destroy, before the old one's spawner creates the box."""
    with house() as place:
        keeper = holder(place)
        kept = [make(keeper) for _ in range(4 if stems else 1)]
        if stems:
            await until(lambda: len(list(place.run.glob(".stem-*/box"))) == 4, "stems wait")
        spawners = spawners_of(keeper.pid)
        for pid in spawners:
            os.kill(pid, signal.SIGSTOP)
        keeper.say("make " + json.dumps(SMALL))
        await until(lambda: len(place.rows()) > len(kept), "the intent is written")
        await asyncio.sleep(0.2)  # until the order was sent
        keeper.kill()
        async with place.opened() as hutch:
            assert {record.id for record in hutch._keeper.boxes()} == set(kept)
            for pid in spawners:
                os.kill(pid, signal.SIGCONT)
            await until(lambda: not any(map(alive, spawners)), "the spawner has ended")
            assert set(place.boxes()) == set(kept)
        await destroy_all(place)


async def test_a_box_that_was_taken_over_has_the_clock_of_its_last_keeper() -> None:
    """The grace of the latest keeper counts: half a second, although the first one had minutes."""
    with house() as place:
        first = holder(place)
        box = make(first)
        first.ask(f"start {box} {NUMBERS}")
        first.kill()
        second = holder(place, grace=0.5)
        assert second.ask("kept") == "1"
        second.kill()
        assert place.empty() == [], "the box outlives its last keeper's grace"
        await destroy_all(place)


async def test_a_ttl_waits_for_a_command_that_runs() -> None:
    """The box's own clock is later than the keeper's, and does not end the box before the grace is over (lesson 6)."""
    with house() as place:
        async with place.opened() as hutch:
            box = await hutch.create(ttl_sec=1, **SMALL)
            assert (await box.exec("sleep 3; echo done")).stdout == "done\n"
            while hutch._keeper.boxes():
                await asyncio.sleep(0.05)
            with pytest.raises(Gone, match="lived its time"):
                await hutch.attach(box.id)
        assert place.traces() == []


async def test_a_persistent_box_whose_keeper_never_returns_keeps_its_files_only() -> None:
    """Processes of a persistent box end after the grace; a prune leaves its files for the next keeper (P16)."""
    with house() as place:
        keeper = holder(place, grace=0.5)
        box = make(keeper, retention="persistent")
        keeper.ask(f"write {box} note.txt hello")
        keeper.ask(f"start {box} {NUMBERS}")
        keeper.kill()
        assert place.empty() == [], "the box outlives its grace"
        assert await pruned(place) == set()
        async with place.opened() as hutch:
            again = await hutch.attach(box, takeover=True)
            assert await again.files.read_text("note.txt") == "hello"
            assert await again.jobs() == ()
        await destroy_all(place)


# --- a keeper that comes back --------------------------------------------------------------------------------------


async def test_a_persistent_box_comes_back_after_close() -> None:
    """A persistent box stops at close and is restored at use; a temporary one ends with its keeper (P16, lesson 15)."""
    with house() as place:
        async with place.opened() as hutch:
            kept = await hutch.create(retention="persistent", **SMALL)
            gone = await hutch.create(**SMALL)
            await kept.files.write("a/b.txt", "kept")
            await kept.start(NUMBERS)
        assert place.empty() == []
        async with place.opened() as hutch:
            (record,) = hutch._keeper.boxes()
            assert (record.id, record.state) == (kept.id, State.STOPPED)
            box = await hutch.attach(kept.id, takeover=True)
            assert await box.files.read_text("a/b.txt") == "kept"
            assert await box.jobs() == ()
            with pytest.raises(Gone):
                await hutch.attach(gone.id)
        await destroy_all(place)


@pytest.mark.parametrize("run_directory", ["kept", "lost"])
async def test_a_persistent_box_survives_a_reboot(run_directory: str) -> None:
    """A reboot ends every process and empties the run directory; files stay, jobs do not (P16)."""
    with house() as place:
        keeper = holder(place)
        kept, paused, gone = make(keeper, retention="persistent"), make(keeper, retention="persistent"), make(keeper)
        for box_id in (kept, paused, gone):
            keeper.ask(f"write {box_id} note.txt of-{box_id}")
            keeper.ask(f"start {box_id} {NUMBERS}")
        keeper.ask(f"pause {paused}")
        keeper.kill(lambda pid: [pid, *place.processes()])
        for pid in place.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert place.empty() == []
        if run_directory == "lost":
            shutil.rmtree(place.run)
        async with place.opened() as hutch:
            states = {record.id: record.state for record in hutch._keeper.boxes()}
            assert states == {kept: State.STOPPED, paused: State.STOPPED}
            for box_id in (kept, paused):
                box = await hutch.attach(box_id, takeover=True)
                assert await box.files.read_text("note.txt") == f"of-{box_id}"
                assert await box.jobs() == ()
            with pytest.raises(Gone):
                await hutch.attach(gone)
        await destroy_all(place)


async def test_a_broken_persistent_box_comes_back_with_its_files() -> None:
    """A restart must not take a box with a dead guest (`error`) for one that was half created (lesson 2)."""
    with house() as place:
        async with place.opened() as hutch:
            box = await hutch.create(retention="persistent", **SMALL)
            await box.files.write("note.txt", "kept")
            live = await hutch._keeper.live(box.id)
            pid = live.record.instance.data["pid"]
            assert isinstance(pid, int)
            os.kill(pid, signal.SIGKILL)
            while (await box.state()) is State.RUNNING:
                await hutch._keeper.health.check(live)
            assert await box.state() is State.ERROR
        async with place.opened() as hutch:
            again = await hutch.attach(box.id, takeover=True)
            assert await again.files.read_text("note.txt") == "kept"
        await destroy_all(place)


async def test_a_paused_box_continues_with_its_jobs_after_a_crash() -> None:
    """A frozen guest does not notice its keeper's death; the next keeper thaws it and finds its jobs (B27, S2)."""
    with house() as place:
        keeper = holder(place)
        box_id = make(keeper)
        keeper.ask(f"write {box_id} note.txt hello")
        job_id = keeper.ask(f"start {box_id} {NUMBERS}")
        if keeper.ask(f"pause {box_id}") != "paused":
            pytest.skip("boxes cannot be paused here")
        keeper.kill()
        async with place.opened() as hutch:
            (record,) = hutch._keeper.boxes()
            assert record.state is State.RUNNING
            box = await hutch.attach(box_id, takeover=True)
            assert await box.files.read_text("note.txt") == "hello"
            await goes_on(hutch, box_id, job_id)
            await box.pause()
            await hutch._keeper.detach()
        async with place.opened() as hutch:
            await hutch.attach(box_id, takeover=True)
            await goes_on(hutch, box_id, job_id)
        assert place.traces() == []


async def goes_on(hutch: Hutch, box_id: str, job_id: str) -> None:
    """The job still runs, and everything that it ever printed is there in order."""
    job = await (await hutch.attach(box_id)).job(job_id)
    before = await job.read(0)
    assert (await job.read(before.cursor, wait=60.0)).data, "the job stands still"
    assert (await job.info()).state is JobState.RUNNING
    lines = (await job.read(0)).data.split(b"\n")[:-1]
    assert lines == [str(number).encode() for number in range(len(lines))]


class Stopping(NativeProvider):
    """A keeper whose spawner is stopped once a box's first process exists, so it never learns that the guest serves."""

    async def _await_guest(
        self, order: Order, planned: InstanceRecord, pending: PendingRequest, link: Link
    ) -> NativeInstance:
        await pending.facts
        os.kill(self.spawner(), signal.SIGSTOP)
        return await super()._await_guest(order, planned, pending, link)

    def spawner(self) -> int:
        (spawners,) = self._spawners.values()
        (spawner,) = spawners._spawners
        assert spawner._process is not None
        return spawner._process.pid

    def die(self) -> None:
        (spawners,) = self._spawners.values()
        for spawner in spawners._spawners:
            spawner.close()


async def test_a_box_reported_as_created_outlives_a_spawner_that_did_not_know_it() -> None:
    """A keeper that has reported "created" dies before its spawner knows; the box must stay."""
    with house() as place:
        wanted = order()
        provider = Stopping(state_dir=place.state, run_dir=place.run)
        instance = await provider.create(wanted, provider.plan(wanted))
        pid = provider.spawner()
        provider.die()
        os.kill(pid, signal.SIGCONT)
        await asyncio.to_thread(os.waitpid, pid, 0)
        second = NativeProvider(state_dir=place.state, run_dir=place.run)
        again = await second.attach(instance.record, wanted.spec)
        await again.check()
        await again.close()
        await second.destroy(instance.record)
        await second.close()
        assert place.empty() == []


class Late(NativeProvider):
    """The old keeper's spawner ends the box after the next keeper has found it alive."""

    def _start_watchdogs(self, box: NativeInstance, *, lived: bool) -> None:
        super()._start_watchdogs(box, lived=lived)
        data = box.record.data
        assert isinstance(data["pid"], int) and isinstance(data["groups"], list)
        os.kill(data["pid"], signal.SIGKILL)
        for path in reversed(data["groups"]):
            cgroup_files.remove(str(path), time.monotonic() + PATIENCE)


async def test_a_persistent_box_that_ends_while_it_is_found_no_longer_runs() -> None:
    """A keeper died while restoring a box; the next one must start, although the box's groups vanish meanwhile."""
    with house() as place:
        wanted = order(retention=Retention.PERSISTENT)
        first = NativeProvider(state_dir=place.state, run_dir=place.run)
        instance = await first.create(wanted, first.plan(wanted))
        second = Late(state_dir=place.state, run_dir=place.run)
        with pytest.raises(NotFound, match="no longer runs"):
            await second.attach(instance.record, wanted.spec)
        await instance.close()
        await second.destroy(instance.record)
        await second.close()
        await first.close()
        assert place.empty() == []


# --- a keeper that lives beside ------------------------------------------------------------------------------------


async def test_two_live_keepers_on_one_state_directory_leave_each_others_boxes_alone() -> None:
    """No start, prune or close touches a living keeper's box; using it is refused with a remedy (lesson 10)."""
    with house() as place:
        other = holder(place)
        theirs = make(other, key="chat")
        other.ask(f"write {theirs} note.txt theirs")
        async with place.opened() as hutch:
            mine = await hutch.create(**SMALL)
            assert [record.id for record in hutch._keeper.boxes()] == [mine.id]
            for attempt in (hutch.attach(theirs), hutch.attach(theirs, takeover=True), hutch.destroy(theirs)):
                with pytest.raises(HeldElsewhere) as held:
                    await attempt
                assert held.value.remedy
            with pytest.raises(HeldElsewhere):
                await hutch.create(key="chat", **SMALL)
            assert await pruned(place) == set()
            assert (await mine.exec("echo here")).stdout == "here\n"
            assert other.ask(f"exec {theirs} cat note.txt") == "theirs"
            assert make(holder(place)) not in (mine.id, theirs), "a third starts beside them"
            assert (await mine.exec("echo here")).stdout == "here\n"
        assert other.ask(f"exec {theirs} cat note.txt") == "theirs"
        assert other.ask("close") == "closed"
        place.residents[-1].ask("close")
        assert place.traces() == []


class Visited(NativeProvider):
    """Another keeper starts and ends, and a prune runs, while the probe's canary lives."""

    def __init__(self, place: House) -> None:
        super().__init__(state_dir=place.state, run_dir=place.run)
        self._place = place

    async def _await_guest(
        self, order: Order, planned: InstanceRecord, pending: PendingRequest, link: Link
    ) -> NativeInstance:
        canary = await super()._await_guest(order, planned, pending, link)
        async with self._place.opened():
            pass
        assert await pruned(self._place) == set()
        return canary


async def test_a_canary_is_not_swept_by_other_keepers() -> None:
    """A probe's box has no keeper; destroying it as a dead one's would make the engine look unusable (lesson 10)."""
    with house() as place:
        provider = Visited(place)
        found = await provider.probe()
        assert found.usable, found.reason
        await provider.close()
        assert place.traces() == []


async def test_only_the_dead_keepers_boxes_are_taken_over() -> None:
    """Of two keepers one dies; a third takes over its boxes and not those of the living one (lesson 10)."""
    with house() as place:
        dead, alive = holder(place), holder(place)
        left, held = make(dead), make(alive)
        dead.ask(f"write {left} note.txt left")
        dead.kill()
        async with place.opened() as hutch:
            assert [record.id for record in hutch._keeper.boxes()] == [left]
            box = await hutch.attach(left, takeover=True)
            assert await box.files.read_text("note.txt") == "left"
            with pytest.raises(HeldElsewhere):
                await hutch.attach(held)
        assert alive.ask(f"exec {held} echo here") == "here"
        assert alive.ask("close") == "closed"
        assert place.traces() == []
