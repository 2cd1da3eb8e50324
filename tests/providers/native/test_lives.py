"""Native boxes from outside: made, found again, stopped, destroyed, whatever died in between."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.providers.native.boxes import (  # fmt: skip
    LIMITS,
    alive,
    box,
    engine,
    make,
    order,
    out,
    pid_of,
    run,
    run_dir,
    run_names,
    spec,
    until,
)

from hutch.errors import Conflict, EngineError, HutchError, NotFound, Refused
from hutch.model.spec import Mount, Order, Retention
from hutch.providers.base import Command, InstanceRecord
from hutch.providers.guest_client.link import Link
from hutch.providers.native import cleanup
from hutch.providers.native.instance import NativeInstance
from hutch.providers.native.provider import NativeProvider
from hutch.providers.native.spawn.client import PendingRequest

pytestmark = pytest.mark.slow


def traces(record: InstanceRecord) -> list[str]:
    """What is left of a box on this machine."""
    data = record.data
    groups, pid = data.get("groups"), data.get("pid")
    paths = [str(data["directory"]), str(data.get("store") or ""), *(groups if isinstance(groups, list) else [])]
    found = [path for path in paths if path and os.path.exists(path)]
    if isinstance(pid, int) and alive(pid):
        found.append(f"process {pid}")
    return found


async def test_a_destroyed_box_leaves_nothing() -> None:
    async with engine() as native:
        made = await make(native)
        await run(made, "sleep 1000 & head -c 3M /dev/zero; echo x > /workspace/y")
        assert traces(made.record)
        await made.close()
        await native.destroy(made.record)
        assert traces(made.record) == []
        await native.destroy(made.record)  # twice is fine


async def test_destroying_what_never_was_is_fine() -> None:
    async with engine() as native:
        wanted = order()
        await native.destroy(native.plan(wanted))


async def test_destroy_works_from_the_planned_record_alone() -> None:
    """A keeper that died right after `create` knows only its plan (lesson 1)."""
    async with engine() as native:
        wanted = order()
        planned = native.plan(wanted)
        made = await native.create(wanted, planned)
        await made.close()
        stranger = NativeProvider(state_dir=native._state, run_dir=native._run)
        await stranger.destroy(planned)
        assert traces(made.record) == []


async def test_a_record_of_another_process_kills_nothing() -> None:
    """A pid that was given to somebody else since is not the box's."""
    bystander = subprocess.Popen(["sleep", "1000"])  # noqa: ASYNC220  # the test wants a plain child
    try:
        async with engine() as native:
            made = await make(native)
            await made.close()
            await native.destroy(made.record)
            forged = made.record.but(data={**made.record.data, "pid": bystander.pid})
            await native.destroy(forged)
            assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


async def test_a_frozen_box_can_be_destroyed() -> None:
    async with engine() as native:
        made = await make(native)
        await made.pause()
        await made.close()
        await native.destroy(made.record)
        assert traces(made.record) == []


async def test_a_paused_box_continues_where_it_was() -> None:
    async with engine() as native, box(native) as made:
        job = await made.start(Command(command="while :; do date +%N >> /tmp/log; sleep 0.01; done"))
        await until_written(made)
        await made.pause()
        await made.resume()
        before = int(await out(made, "stat -c %s /tmp/log"))
        await until_written(made, before)
        await job.signal(signal.SIGKILL)


async def until_written(made: object, more_than: int = 0) -> None:
    for _ in range(2000):
        text = await out(made, "stat -c %s /tmp/log 2>/dev/null || echo 0")  # type: ignore[arg-type]
        if int(text) > more_than:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the job did not go on")


async def test_every_cancelled_creation_leaves_nothing() -> None:
    """Cancelled before the request, while the child is made, and while it becomes a guest (lesson 4)."""
    async with engine() as native:
        async with box(native):
            pass
        for delay in (0, 0, 0.0005, 0.001, 0.002, 0.003, 0.004, 0.006):
            task = asyncio.create_task(make(native))
            await asyncio.sleep(delay)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                made = await task
                await made.close()
                await native.destroy(made.record)
                raise asyncio.CancelledError  # it was faster
            assert await native.list() == ()


async def test_a_box_that_cannot_be_built_leaves_nothing_and_names_the_step(tmp_path: Path) -> None:
    """The kernel's refusal, the step, and what to do (lesson 34)."""
    image = tmp_path / "image"
    (image / "bin").mkdir(parents=True)
    (image / "usr").write_text("a file where every box needs a directory")
    async with engine() as native:
        wanted = order(image=f"dir:{image}", mounts=(Mount(source="/usr/share", target="/usr/x"),))
        with pytest.raises(EngineError) as caught:
            await native.create(wanted, native.plan(wanted))
        assert caught.value.remedy
        assert caught.value.details["errno"] == "ENOTDIR"
        assert caught.value.details["step"] == "finish the root"
        assert [name for name in run_names(native) if not name.startswith(".stem-")] == []
        async with box(native) as made:
            assert await out(made, "echo ok") == "ok"


async def test_an_image_that_was_exchanged_is_refused(tmp_path: Path) -> None:
    """Between policy's look and the mount somebody puts another directory there."""
    (tmp_path / "image").mkdir()
    wanted = order(image=f"dir:{tmp_path}/image")
    (tmp_path / "image").rename(tmp_path / "old")
    (tmp_path / "image").mkdir()
    async with engine() as native:
        with pytest.raises(Refused, match="replaced"):
            await native.create(wanted, native.plan(wanted))


async def test_a_box_outlives_its_keeper_and_is_found_again() -> None:
    """A keeper is killed, another one re-adopts the box with its job and unread output (P16)."""
    async with engine() as native:
        program = """
import asyncio, sys
sys.path.insert(0, sys.argv[3])
from tests.providers.native.boxes import order
from hutch.providers.base import Command
from hutch.providers.native.provider import NativeProvider
async def main():
    native = NativeProvider(state_dir=sys.argv[1], run_dir=sys.argv[2])
    wanted = order()
    made = await native.create(wanted, native.plan(wanted))
    job = await made.start(Command(command="echo early; sleep 0.2; echo late; exit 7"))
    print(made.record.to_json().decode(), flush=True)
    print(job.id, flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""
        here = str(Path(__file__).parents[3])
        arguments = [sys.executable, "-c", program, native._state, native._run, here]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as keeper:  # noqa: ASYNC220
            assert keeper.stdout is not None
            record = InstanceRecord.from_json(keeper.stdout.readline())
            job_id = keeper.stdout.readline().strip()
            keeper.kill()
        assert [found.box_id for found in await native.list()] == [record.box_id]
        made = await native.attach(record, spec())
        result = await (await made.job(job_id)).wait(30)
        assert (result.stdout, result.exit_code) == ("early\nlate\n", 7)
        await made.close()
        await native.destroy(record)
        assert traces(record) == []


async def test_a_box_that_is_gone_is_certainly_gone() -> None:
    async with engine() as native:
        made = await make(native)
        os.kill(pid_of(made), signal.SIGKILL)
        await until(lambda: not alive(pid_of(made)), "the box is dead")
        with pytest.raises(NotFound):
            await native.attach(made.record, spec())
        await made.close()
        await native.destroy(made.record)
        assert traces(made.record) == []


async def test_a_persistent_box_comes_back_with_its_files() -> None:
    async with engine() as native:
        wanted: Order = order(retention=Retention.PERSISTENT)
        planned = native.plan(wanted)
        made = await native.create(wanted, planned)
        await run(made, "echo kept > note; mkdir -p ~/a/b; ln -s note link; sleep 1000 > /dev/null & ")
        await made.close()
        await native.stop(made.record)
        assert not alive(pid_of(made))
        made = await native.restore(wanted, made.record)
        assert await out(made, "cat note link; ls ~/a; ls /proc | grep -c sleep") == "kept\nkept\nb\n0"
        await made.close()
        await native.destroy(made.record)
        assert traces(made.record) == []
        with pytest.raises(NotFound):
            await native.restore(wanted, made.record)


async def test_limits_change_while_the_box_lives() -> None:
    """B14."""
    async with engine() as native, box(native) as made:
        if not made.record.data["groups"]:
            pytest.skip("no control group here")
        wanted = LIMITS.but(memory_mb=100, pids=30, disk_mb=99)
        assert await made.change_limits(wanted) == ("disk_mb",)
        assert made.limits.memory_mb == 100
        groups = made.record.data["groups"]
        assert isinstance(groups, list)
        pids = next(Path(group) / "pids.max" for group in groups if (Path(group) / "pids.max").exists())
        assert 30 < int(pids.read_text()) < 64


async def test_a_half_made_box_is_listed_and_removed() -> None:
    """A spawner that crashes between two steps leaves a directory without a plan, or a plan of a dead process."""
    async with engine() as native:
        async with box(native):
            pass
        bare, dead = order().box_id, order().box_id
        (run_dir(native) / bare / "spill").mkdir(parents=True)
        (run_dir(native) / dead).mkdir()
        plan = {"keeper": "k", "pid": 2**22 - 3, "start": 1, "boot": "x", "groups": []}
        (run_dir(native) / dead / "box").write_text(json.dumps(plan))
        found = await native.list()
        assert {record.box_id for record in found} == {bare, dead}
        for record in found:
            await native.destroy(record)
        assert await native.list() == ()


async def test_a_hundred_at_once_are_a_hundred_boxes() -> None:
    async with engine() as native:
        boxes = await asyncio.gather(*(make(native) for _ in range(30)))
        names = await asyncio.gather(*(out(made, "hostname") for made in boxes))
        assert sorted(names) == sorted(made.record.box_id[:12] for made in boxes)
        await asyncio.gather(*(made.close() for made in boxes))
        await asyncio.gather(*(native.destroy(made.record) for made in boxes))
        assert [left for made in boxes for left in traces(made.record)] == []


async def test_the_engine_says_what_it_can_do(rootless: bool) -> None:
    async with engine() as native:
        found = await native.probe()
        assert found.usable, found.reason
        assert found.guest
        assert found.durable_jobs
        assert ("root" in found.users) is found.uid_range
        assert all(missing.reason and missing.remedy for missing in found.missing), found.missing
        assert await native.probe() == found  # and remembers


class Mute(NativeProvider):
    """Its guests never send a hello."""

    async def _await_guest(
        self, order: Order, planned: InstanceRecord, pending: PendingRequest, link: Link
    ) -> NativeInstance:
        raise EngineError("no greeting")


async def test_a_canary_that_dies_leaves_no_spawner() -> None:
    async with engine(Mute) as native:
        for _ in range(2):
            assert (await native.probe()).reason.endswith("no greeting")
            assert native._spawners == {}
            assert run_names(native) == []


async def test_a_canary_whose_process_was_killed_is_swept() -> None:
    """No list shows it, so that nobody else would remove it."""
    async with engine() as native:
        gone = await asyncio.create_subprocess_exec("true")
        await gone.wait()
        wanted = order().but(box_id=f"{cleanup.PRESTARTED_PREFIX}{gone.pid}-canary")
        made = await native.create(wanted, native.plan(wanted))
        await made.close()
        assert await native.list() == ()
        await native.sweep()
        assert traces(made.record) == []


async def test_what_the_engine_does_not_know_is_a_configuration_error() -> None:
    with pytest.raises(HutchError, match="speed"):
        NativeProvider().configure({"speed": 11})


async def test_a_running_job_cannot_be_forgotten() -> None:
    async with engine() as native, box(native) as made:
        job = await made.start(Command(command="sleep 100"))
        with pytest.raises(Conflict):
            await made.forget(job.id)


async def test_a_damaged_record_removes_nothing_of_others(tmp_path: Path) -> None:
    """A record names directories; what does not bear the box's own name is not the box's."""
    (tmp_path / "precious").mkdir()
    async with engine() as native:
        planned = native.plan(order())
        for name in ("directory", "store"):
            with pytest.raises(EngineError, match="not its own"):
                await native.destroy(planned.but(data={**planned.data, name: str(tmp_path / "precious")}))
    assert (tmp_path / "precious").exists()
