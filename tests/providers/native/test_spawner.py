"""The spawner: a clean process that ends with its keeper, ends its prestarted children and leaves its boxes alone."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.providers.native.boxes import LIMITS, alive, box, engine, make, order, out, pid_of, run_dir, run_names, until

from hutch.errors import EngineError, HutchError
from hutch.linux.cgroup_files import PIDS_HEADROOM
from hutch.model.spec import Mount, MountMode, Workspace
from hutch.providers.native import cleanup
from hutch.providers.native.provider import NativeProvider
from hutch.providers.native.spawn import launch, wire

pytestmark = pytest.mark.slow


def spawner_pids(native: NativeProvider) -> list[int]:
    spawners = [each for group in native._spawners.values() for each in group._spawners]
    return [each._process.pid for each in spawners if each._process is not None]


def spawner_with(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """The next spawners run these before they begin."""
    begin = "    spawner.main("
    injected = "".join(f"    {line}\n" for line in lines)
    monkeypatch.setattr(launch, "_BOOTSTRAP", launch._BOOTSTRAP.replace(begin, injected + begin))


def zygote_of(native: NativeProvider) -> int:
    """The first of the spawner's children, which the kernel lists in the order of their creation."""
    (spawner,) = spawner_pids(native)
    return int(Path(f"/proc/{spawner}/task/{spawner}/children").read_text().split()[0])


def prestarted(native: NativeProvider) -> list[str]:
    return [name for name in run_names(native) if name.startswith(cleanup.PRESTARTED_PREFIX)]


async def with_prestarted(native: NativeProvider) -> list[str]:
    """Boxes of one template, until the spawner has prestarted children of it."""
    for _ in range(3):
        async with box(native):
            pass
    await until(lambda: len(prestarted_pids(native)) == 4, "four children wait")
    return prestarted(native)


def prestarted_pids(native: NativeProvider) -> list[int]:
    plans = [cleanup.read_plan(str(run_dir(native) / name)) for name in prestarted(native)]
    return [plan["pid"] for plan in plans if "pid" in plan]


def files_of_the_machine(process: Path) -> list[str]:
    names = []
    for fd in os.listdir(process / "fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            names.append(os.readlink(process / "fd" / fd))
    ours = ("/dev/null", "socket:", "anon_inode:", "/sys/fs/cgroup/", "net:")
    # The counters of networks are named by the process and the task that opened them.
    counters = rf"/proc/{process.name}/(task/\d+/)?net/\w+"
    return [name for name in names if not name.startswith(ours) and not re.fullmatch(counters, name)]


async def test_its_environment_and_command_line_are_empty(rootless: bool) -> None:
    async with engine() as native, box(native):
        (pid,) = spawner_pids(native)
        process = Path(f"/proc/{pid}")
        assert (process / "cmdline").read_bytes().rstrip(b"\0") == b"hutch-spawner"
        assert (process / "environ").read_bytes().strip(b"\0") == b""
        assert os.readlink(process / "cwd") == "/"
        # It may be prestarting a child at this moment, and then holds that one's directory.
        await until(lambda: not files_of_the_machine(process), "it holds no file of the machine")


async def test_it_has_one_thread_and_a_session_of_its_own() -> None:
    async with engine() as native, box(native):
        (pid,) = spawner_pids(native)
        assert len(os.listdir(f"/proc/{pid}/task")) == 1
        assert os.getsid(pid) == pid


async def test_it_ends_with_its_keeper_and_its_prestarted_children_with_it() -> None:
    async with engine() as native:
        await with_prestarted(native)
        (pid,) = spawner_pids(native)
        await native.close()
        assert not alive(pid)
        assert run_names(native) == []


async def test_no_child_is_prestarted_for_a_single_box() -> None:
    """`hutch run` pays for nothing that it does not use."""
    async with engine() as native, box(native) as made:
        await out(made, "sleep 0.1")
        assert prestarted(native) == []


async def test_prestarted_children_of_another_template_end() -> None:
    async with engine() as native:
        old = await with_prestarted(native)
        async with box(native, read_only_root=True, workdir="/tmp"):
            pass  # the same template: a workdir is the order's
        assert set(prestarted(native)) & set(old)
        async with box(native, workspace=Workspace(mode=MountMode.NONE)):
            await until(lambda: not set(prestarted(native)) & set(old), "the old prestarted are gone")


async def test_a_killed_spawner_is_replaced_and_its_box_lives() -> None:
    async with engine() as native:
        await with_prestarted(native)
        made = await make(native)
        (pid,) = spawner_pids(native)
        os.kill(pid, signal.SIGKILL)
        assert await out(made, "echo alive") == "alive"
        await until(lambda: not native._spawners or not alive(pid), "the spawner is dead")
        await asyncio.sleep(0.05)
        async with box(native) as other:
            assert await out(other, "echo alive too") == "alive too"
            assert spawner_pids(native) != [pid]
        assert alive(pid_of(made))
        await made.close()
        await native.destroy(made.record)
        await native.close()
        # What the killed one left of its prestarted children is removed with the next keeper's first box.
        async with box(native):
            pass


async def test_a_dead_prestarted_child_is_not_used() -> None:
    async with engine() as native:
        await with_prestarted(native)
        for pid in prestarted_pids(native):
            os.kill(pid, signal.SIGKILL)
            await until(lambda pid=pid: not alive(pid), "the child is dead")  # type: ignore[misc]
        async with box(native) as made:
            assert await out(made, "echo fresh") == "fresh"


async def test_an_order_too_large_for_a_message_is_refused() -> None:
    """Environments of any size travel by descriptor; only a list of mounts could fill a message."""
    async with engine() as native:
        async with box(native, env={f"V{n}": "x" * 10_000 for n in range(40)}) as made:
            assert await out(made, "echo ${#V39}") == "10000"
        mounts = tuple(Mount(source="/usr/share", target=f"/mnt/{'x' * 99}{n}") for n in range(1000))
        with pytest.raises(HutchError):
            await make(native, mounts=mounts)


def test_messages_carry_descriptors() -> None:
    ours, theirs = wire.pair()
    with ours, theirs:
        fd = wire.write_memfd(b"hidden")
        wire.send(ours, {"a": 1}, [fd])
        os.close(fd)
        received = wire.receive(theirs)
        assert received is not None
        message, (copy,) = received
        assert message == {"a": 1}
        assert not os.get_inheritable(copy)
        assert wire.read_memfd(copy) == b"hidden"
        ours.close()
        assert wire.receive(theirs) is None


async def test_a_killed_zygote_is_replaced(log_lines: list[str]) -> None:
    """Boxes are cloned from an idle fork of the spawner, which the kernel may choose to kill."""
    async with engine() as native:
        async with box(native) as made:
            zygote = zygote_of(native)
            os.kill(zygote, signal.SIGKILL)
            await until(lambda: not alive(zygote), "the zygote is dead")
            async with box(native) as other:
                assert await out(other, "echo alive") == "alive"
            assert await out(made, "echo alive") == "alive"
            assert not Path(f"/proc/{zygote}").exists()
            await until(lambda: "cloned from was killed" in "".join(log_lines), "it is reported")


FAILURES = {
    "raise OSError(24, 'Too many open files')": "Too many open files",
    "WarmUp.perform = lambda self: False": "a warm-up did not end",
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_zygote_that_cannot_warm_up_serves_and_says_so(
    failure: str, log_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its boxes work, and need more memory: nobody would know why."""
    spawner_with(
        monkeypatch,
        "from hutch.providers.native.spawn import zygote",
        "class WarmUp(zygote.WarmUp):",
        f"    def __init__(self): super().__init__(); {failure}",
        "zygote.WarmUp = WarmUp",
    )
    async with engine() as native:
        zygotes = set()
        for _ in range(6):
            async with box(native) as made:
                assert await out(made, "echo alive") == "alive"
                zygotes.add(zygote_of(native))
        assert len(zygotes) == 1, "one serves them all"
        await until(lambda: FAILURES[failure] in "".join(log_lines), "the reason is reported")
        assert "".join(log_lines).count(FAILURES[failure]) == 1


async def test_a_zygote_that_dies_over_a_request_leaves_nothing_of_it() -> None:
    """It may have made a child before it died: the next one must not share that one's socket."""
    async with engine() as native, box(native):
        zygote = zygote_of(native)
        os.kill(zygote, signal.SIGSTOP)
        creating = asyncio.create_task(make(native))
        await asyncio.sleep(0.3)  # the request waits, unread
        os.kill(zygote, signal.SIGKILL)
        other = await creating
        assert await out(other, "echo alive") == "alive"
        await other.close()
        await native.destroy(other.record)


async def test_a_creation_that_is_cancelled_twice_leaves_no_box() -> None:
    """The second time nobody waits for it any more, and its order is still on its way to a busy spawner."""
    async with engine() as native, box(native):
        ((spawner,),) = [group._spawners for group in native._spawners.values()]
        (pid,) = spawner_pids(native)
        os.kill(pid, signal.SIGSTOP)
        try:
            wanted = order()
            creating = asyncio.create_task(native.create(wanted, native.plan(wanted)))
            await until(lambda: spawner.load == 1, "the order is sent")
            for _ in range(2):
                creating.cancel()
                await asyncio.sleep(0)  # it hears of it
            with pytest.raises(asyncio.CancelledError):
                await creating
        finally:
            os.kill(pid, signal.SIGCONT)
        async with box(native):  # its order came after the cancelled one, which has become a box by now
            await until(lambda: wanted.box_id not in run_names(native), "the cancelled box is gone")
        assert spawner.load == 0


async def test_dead_prestarted_children_are_removed() -> None:
    async with engine() as native:
        old = await with_prestarted(native)
        for pid in prestarted_pids(native):
            os.kill(pid, signal.SIGKILL)
        await until(lambda: not set(prestarted(native)) & set(old), "the dead children are gone")


async def test_a_spawner_that_can_prestart_no_child_says_so(log_lines: list[str]) -> None:
    """Boxes are made without them, and slower: nobody would know why."""
    async with engine() as native:
        names = await with_prestarted(native)
        place, pids = run_dir(native), prestarted_pids(native)
        away = place.rename(f"{place}-away")
        try:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            await until(lambda: "can prestart no children" in "".join(log_lines), "the reason is reported")
        finally:
            for name in names:
                shutil.rmtree(away / name)
            away.rename(place)
        async with box(native) as made:
            assert await out(made, "echo alive") == "alive"


async def test_a_spawner_that_finds_fewer_control_groups_makes_no_box(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeper and spawner look for themselves, and the grades are the keeper's: nobody would hold the limits (B17)."""
    async with engine() as native:
        if not native._machine_facts().cgroups.memory:
            pytest.skip("no control group holds memory here")
        with monkeypatch.context() as refusal:
            lines = "from hutch.linux import cgroup_detect", "cgroup_detect._probe = lambda _: 'refused'"
            spawner_with(refusal, *lines)
            with pytest.raises(EngineError, match=r"no limits.* memory.*refused") as reported:
                await make(native)
        assert "try again" in reported.value.remedy
        assert run_names(native) == []
        async with box(native) as made:  # a new spawner checks again
            assert await out(made, "echo limited") == "limited"
            assert made.record.data["groups"]


async def test_the_limits_hold_before_the_creation_is_answered() -> None:
    """A child has the limits of the last order until it is assigned, and its guest may send its hello before its
    spawner has written the new ones."""
    async with engine() as provider:
        for number in range(12):  # the first is made from the beginning, the others from prestarted children
            limits = LIMITS.but(pids=LIMITS.pids + number // 2 % 3)
            async with box(provider, limits=limits) as made:
                groups = made.record.data["groups"]
                assert isinstance(groups, list)
                files = [Path(str(group), "pids.max") for group in groups if Path(str(group), "pids.max").exists()]
                if not files:
                    pytest.skip("no control group counts processes here")
                assert int(files[0].read_text()) == limits.pids + PIDS_HEADROOM


def test_an_order_that_cannot_be_sent_fails_alone(rootless: bool) -> None:
    """Where an ordinary user's processes have more descriptors in flight than any of them may have open, a box cannot
    be asked for; its spawner stays, and makes the next one when they have arrived."""
    if not rootless:
        pytest.skip("needs an ordinary user: the kernel refuses root nothing here")
    code = """
        import array, errno, os, resource, socket
        from pathlib import Path
        from hutch.errors import Unavailable
        from hutch.sync import Hutch
        resource.setrlimit(resource.RLIMIT_NOFILE, (4000, 4000))
        message = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 250))]
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
        with Hutch() as hutch, hutch.box() as box:
            spawners = children.read_text()
            pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(20)]
            try:
                for near, _ in pairs:
                    near.sendmsg([b"x"], message)
            except OSError as error:
                assert error.errno == errno.ETOOMANYREFS
            try:
                hutch.create(memory_mb=80)
            except Unavailable as error:
                print(error.retryable, error.remedy != "", box.exec("echo still").stdout.strip())
            for pair in pairs:
                for end in pair:
                    end.close()
            with hutch.box(memory_mb=80) as other:
                print(other.exec("echo made").stdout.strip(), children.read_text() == spawners)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)
    assert done.stdout.split() == ["True", "True", "still", "made", "True"], done.stderr


async def test_a_child_that_is_assigned_before_it_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its directory has another name by the time it looks for what lies there: it must not go by the name."""
    spawner_with(
        monkeypatch,
        "import time",
        "from hutch.providers.native.spawn import zygote",
        "run_child = zygote.run_child",
        "zygote.run_child = lambda: (time.sleep(0.5), run_child())",
    )
    async with engine() as native:
        for _ in range(2):
            async with box(native):
                pass
        await until(lambda: bool(prestarted_pids(native)), "a child waits, and sleeps")
        async with box(native) as made:
            assert await out(made, "echo made") == "made"
