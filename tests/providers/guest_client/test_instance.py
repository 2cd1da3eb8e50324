"""`GuestInstance` over a real guest: verdicts from counters, broken connections, dead guests, other users."""

import asyncio
import os
import signal

import pytest
from tests.guest.guest_process import LIMITS, TIMEOUT, instance_of, running_guest, until

from hutch.errors import BoxBroken, NotFound, NotRunnable, Unavailable, Unsupported
from hutch.model.results import Cause, JobState
from hutch.providers.base import Command
from hutch.providers.guest_client.link import Link
from hutch.providers.guest_client.verdicts import MB, Counters


class Counting:
    """Counters that a test moves by hand: an engine's, when something happens to the box."""

    def __init__(self) -> None:
        self.now = Counters(memory_peak_bytes=MB)

    def read(self) -> Counters:
        return self.now


async def test_counters_that_grow_during_a_command_are_its_verdict() -> None:
    with running_guest() as guest:
        facts = Counting()
        async with instance_of(guest, facts) as box:
            running = asyncio.create_task(box.run(Command(command="while [ ! -e go ]; do sleep 0.01; done; exit 1")))
            while not await box.jobs():
                await asyncio.sleep(0.01)
            facts.now = Counters(oom_kills=1, memory_peak_bytes=512 * MB)
            (guest.workdir / "go").touch()
            result = await running
            assert result.verdict.cause is Cause.OOM
            assert result.usage.box_memory_peak_mb == 512
            later = await box.run(Command(command="exit 1"))
            assert later.verdict.cause is Cause.EXIT


async def test_a_jobs_verdict_is_decided_once() -> None:
    """What happens to the box after a job's end is not the job's doing."""
    with running_guest() as guest:
        facts = Counting()
        async with instance_of(guest, facts) as box:
            job = await box.start(Command(command="exit 1"))
            assert (await job.wait(TIMEOUT)).verdict.cause is Cause.EXIT
            facts.now = Counters(oom_kills=1)
            assert (await job.wait(TIMEOUT)).verdict.cause is Cause.EXIT
            info = await job.info()
            assert info.verdict is not None
            assert info.verdict.cause is Cause.EXIT


async def test_no_process_left_is_a_verdict() -> None:
    """The kernel's EAGAIN at the process limit; the box says so and lives."""
    with running_guest(no_processes=True) as guest:
        async with instance_of(guest) as box:
            result = await box.run(Command(command=("true",)))
            assert result.verdict.cause is Cause.PIDS
            assert result.exit_code is None
            with pytest.raises(NotRunnable) as caught:
                await box.start(Command(command=("true",)))
            assert "limits.pids" in caught.value.remedy
            await box.check()


async def test_a_broken_connection_is_made_again() -> None:
    with running_guest() as guest:
        async with instance_of(guest) as box:
            assert (await box.run(Command(command="echo 1"))).stdout == "1\n"
            (await box.link()).close()
            results = await asyncio.gather(*(box.run(Command(command=f"echo {n}")) for n in range(10)))
            assert [result.stdout for result in results] == [f"{n}\n" for n in range(10)]


async def test_a_dead_guest_is_a_broken_box() -> None:
    with running_guest() as guest:
        async with instance_of(guest) as box:
            await box.check()
            running = asyncio.create_task(box.run(Command(command="touch there; exec sleep 5")))
            await until((guest.workdir / "there").exists)
            guest.process.kill()
            with pytest.raises(BoxBroken):
                await running
            for attempt in (box.check(), box.jobs(), box.run(Command(command="true"))):
                with pytest.raises(BoxBroken):
                    await attempt


async def test_a_guest_that_does_not_answer_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.providers.guest_client.instance.ANSWER_GRACE", 0.1)
    with running_guest() as guest:
        async with instance_of(guest) as box:
            await box.check()
            os.kill(guest.pid, signal.SIGSTOP)
            with pytest.raises(Unavailable):
                await box.run(Command(command="true", timeout_sec=0.1))


async def test_another_box_in_its_place_is_refused() -> None:
    with running_guest(box_name="other") as guest:
        async with instance_of(guest) as box:
            with pytest.raises(BoxBroken, match="another box"):
                await box.check()


async def test_other_users_need_a_deputy() -> None:
    with running_guest() as guest, running_guest() as second:
        async with instance_of(guest) as box:
            with pytest.raises(Unsupported):
                await box.run(Command(command="true", user="root"))

        async def root_guest(user: str) -> Link:
            assert user == "root"
            return await Link.connect(second.path)

        async with instance_of(guest, root_guest=root_guest) as box:
            result = await box.run(Command(command="pwd -P", user="root"))
            assert result.stdout.strip() == str(second.workdir)
            own = await box.start(Command(command="exit 3"))
            other = await box.start(Command(command="exit 4", user="root"))
            assert (await (await box.job(own.id)).wait(TIMEOUT)).exit_code == 3
            assert (await (await box.job(other.id)).wait(TIMEOUT)).exit_code == 4
            assert {job.id for job in await box.jobs()} == {own.id, other.id}
            with pytest.raises(NotFound):
                await box.job("nobody-1")


async def test_limits_that_only_an_engine_can_change_are_named() -> None:
    with running_guest() as guest:
        async with instance_of(guest) as box:
            assert await box.change_limits(LIMITS.but(memory_mb=1024, timeout_sec=5)) == ("memory_mb",)
            assert box.limits.timeout_sec == 5
            assert box.limits.memory_mb == LIMITS.memory_mb


async def test_everything_can_be_ended_at_once() -> None:
    with running_guest() as guest:
        async with instance_of(guest) as box:
            jobs = [await box.start(Command(command="exec sleep 1000")) for _ in range(5)]
            await box.kill_all()
            assert not any(job.state is JobState.RUNNING for job in await box.jobs())
            for job in jobs:
                assert (await job.wait(TIMEOUT)).verdict.cause is Cause.CANCELLED
            assert (await box.run(Command(command="echo fine"))).stdout == "fine\n"
