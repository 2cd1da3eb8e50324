"""Control groups with real processes in the machine's real groups."""

import contextlib
import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hutch.linux import cgroup_files as control
from hutch.linux.cgroups import CgroupSupport, Group, GroupLimits, Tree, detect

MB = 1024 * 1024
ROOMY = GroupLimits(memory_bytes=256 * MB, pids=64, cpus=2.0)
MACHINE = detect()
_serial = itertools.count()

needs_groups = pytest.mark.skipif(
    not (MACHINE.memory and MACHINE.pids and MACHINE.cpu and MACHINE.freezer),
    reason=f"needs writable cgroups: {MACHINE.reason}",
)


def until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.005)


def new_name() -> str:
    """Return the name of a keeper that no other test has."""
    return f"test-{os.getpid()}-{next(_serial)}"


@pytest.fixture
def tree() -> Iterator[Tree]:
    made = Tree(MACHINE, new_name())
    yield made
    left = made.list()
    for paths in left:
        made.open(paths).remove()
    made.close()
    assert not left, f"the test left groups behind: {left}"


@contextlib.contextmanager
def running(group: Group, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process started in `group`; the fork that enters has one thread, as `enter` demands."""
    process = subprocess.Popen(
        argv, preexec_fn=lambda: join(group), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        group.thaw()
        process.communicate()


def join(group: Group) -> None:
    if group.directory_fd() is None:
        group.enter()
    else:
        group.place(os.getpid())


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-ISc", code)


@contextlib.contextmanager
def limited(tree: Tree, ceiling: GroupLimits = ROOMY) -> Iterator[Group]:
    group = tree.make()
    try:
        group.limit(ceiling)
        yield group
    finally:
        group.remove(timeout=20)


@needs_groups
def test_memory_limit_kills_and_is_counted(tree: Tree) -> None:
    """The hog dies by SIGKILL, and the group says that it was memory (B17, lesson 24)."""
    with limited(tree, GroupLimits(32 * MB, 64, 2.0)) as group:
        assert group.facts().oom_kills == 0
        with running(group, *python("x = bytearray(200 << 20)")) as process:
            assert process.wait(30) == -signal.SIGKILL
        facts = group.facts()
        assert facts.oom_kills == 1
        assert facts.memory_peak_bytes is not None and 16 * MB < facts.memory_peak_bytes <= 32 * MB
        assert facts.pids_hits == 0


@needs_groups
def test_swap_does_not_extend_the_memory_limit(tree: Tree) -> None:
    """No unlimited swap (lesson 29)."""
    with limited(tree) as group:
        hierarchy = group._hierarchies["memory"]
        name = "memory.memsw.limit_in_bytes" if hierarchy.version == 1 else "memory.swap.max"
        if not os.path.exists(f"{hierarchy.directory}/{name}"):
            pytest.skip("this kernel does not account for swap")
        assert int(control.read(f"{hierarchy.directory}/{name}")) == (
            ROOMY.memory_bytes if hierarchy.version == 1 else 0
        )


@needs_groups
def test_limits_change_both_ways_while_the_box_runs(tree: Tree) -> None:
    """Limits that can change live do; the order of v1's two memory files differs for raising and lowering (B14)."""
    with limited(tree) as group:
        with running(group, "sleep", "60"):
            for megabytes in (512, 64, 128):
                group.limit(GroupLimits(megabytes * MB, 32, 0.5))
                hierarchy = group._hierarchies["memory"]
                mark = control.MARKS[hierarchy.version]["memory"]
                assert int(control.read(f"{hierarchy.directory}/{mark}")) == megabytes * MB
                if hierarchy.version == 1 and os.path.exists(f"{hierarchy.directory}/{control.SOCKETS_FILE}"):
                    sockets = int(control.read(f"{hierarchy.directory}/{control.SOCKETS_FILE}"))
                    assert sockets == max(8 * MB, megabytes * MB // 8)


@needs_groups
def test_limit_below_the_use_is_refused_and_kills_nobody(tree: Tree) -> None:
    """A change that does not fit is an error, not a death (B14)."""
    with limited(tree) as group:
        with running(group, *python("x = bytearray(b'1') * (64 << 20); print(flush=True); input()")) as process:
            assert process.stdout is not None and process.stdout.readline()
            with pytest.raises(OSError) as refusal:
                group.limit(GroupLimits(16 * MB, 64, 2.0))
            assert refusal.value.errno == errno.EBUSY
            assert process.poll() is None
            assert group.facts().oom_kills == 0


@needs_groups
def test_pids_limit_stops_forks_and_is_counted(tree: Tree) -> None:
    """The limit leaves head-room for the guest, then fork fails with EAGAIN (B17, lesson 24)."""
    code = """
import errno, os, signal
children = []
try:
    while len(children) < 100:
        pid = os.fork()
        if not pid:
            signal.pause()
        children.append(pid)
except OSError as error:
    print(error.errno == errno.EAGAIN, len(children), flush=True)
for pid in children:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
"""
    with limited(tree, GroupLimits(256 * MB, 6, 2.0)) as group:
        with running(group, *python(code)) as process:
            assert process.communicate(timeout=30)[0] == b"True %d\n" % (6 + control.PIDS_HEADROOM - 1)
        facts = group.facts()
        assert facts.pids_hits is not None and facts.pids_hits >= 1
        assert facts.oom_kills == 0


@needs_groups
def test_cpu_quota_throttles(tree: Tree) -> None:
    """A busy loop over its share is throttled, and the count says so (B17)."""
    with limited(tree, GroupLimits(256 * MB, 64, 0.1)) as group:
        assert group.facts().throttled == 0
        with running(group, *python("while True: pass")):
            until(lambda: (group.facts().throttled or 0) > 0, "throttled")


@needs_groups
def test_share_above_an_ancestors_falls_to_the_ancestors(tree: Tree) -> None:
    """v1 refuses a quota that the parent cannot give: Hutch in a small container must still make boxes."""
    hierarchy = MACHINE.hierarchy("cpu")
    if hierarchy is None or hierarchy.version != 1:
        pytest.skip("only cgroup v1 refuses it")
    with limited(tree) as group:
        directory = group._hierarchies["cpu"].directory
        control.write(f"{directory}/cpu.cfs_quota_us", "-1")
        control.limit_cpu(1, os.path.dirname(directory), 0.5)
        control.limit_cpu(1, directory, 2.0)
        assert int(control.read(f"{directory}/cpu.cfs_quota_us")) == 50_000


@needs_groups
def test_the_peak_stays_when_the_memory_is_free_again(tree: Tree) -> None:
    with limited(tree) as group:
        with running(group, *python("x = bytearray(b'1') * (96 << 20)")) as process:
            assert process.wait(30) == 0
        peak = group.facts().memory_peak_bytes
        if peak is None:
            pytest.skip("this kernel has no memory.peak (Linux 5.19)")
        assert peak > 90 * MB


@needs_groups
def test_a_frozen_box_runs_again_after_the_thaw(tree: Tree) -> None:
    """Pause: every process of the box, children included, and even one that forks all the time."""
    code = """
import os, subprocess, sys, time
if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, "-ISc", "import time\\nwhile True: time.sleep(60)"])
while True:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    os.write(1, b".")
"""
    with limited(tree) as group:
        with running(group, *python(code)) as process:
            assert process.stdout is not None
            output = process.stdout.fileno()
            assert os.read(output, 1) == b"."
            group.freeze(timeout=20)
            os.set_blocking(output, False)
            with contextlib.suppress(BlockingIOError):
                while os.read(output, 65536):
                    pass
            time.sleep(0.05)
            with pytest.raises(BlockingIOError):
                os.read(output, 1)
            group.thaw()
            os.set_blocking(output, True)
            assert os.read(output, 1) == b"."
            group.freeze(timeout=20)  # again, now that its group exists


@needs_groups
def test_v1_freezer_where_there_is_no_v2(tmp_path: Path) -> None:
    """The same machine without its v2 mount: a killed process of a frozen box ends at the thaw."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines(keepends=True)
    (tmp_path / "mountinfo").write_text("".join(line for line in lines if " - cgroup2 " not in line))
    machine = detect(mountinfo=str(tmp_path / "mountinfo"))
    if not machine.freezer:
        pytest.skip(f"needs the v1 freezer: {machine.reason}")
    assert machine.mode == "v1"
    tree = Tree(machine, f"test-v1-{os.getpid()}")
    try:
        with limited(tree) as group, running(group, *python("while True: pass")) as process:
            group.freeze(timeout=20)
            assert control.read(f"{group.paths[-1]}/freezer.state") == b"FROZEN\n"
            process.kill()
            again = tree.open(group.paths)
            again.thaw()
            assert process.wait(30) == -signal.SIGKILL
    finally:
        tree.close()
    assert not os.path.exists(os.path.dirname(group.paths[-1]))


@needs_groups
def test_frozen_box_is_thawed_from_its_record(tree: Tree) -> None:
    """A keeper that died left a paused box; the next one has only the paths."""
    with limited(tree) as group:
        with running(group, "cat") as process:
            group.freeze(timeout=20)
            successor = Tree(MACHINE, "test-successor-" + str(os.getpid()))
            try:
                again = successor.open(group.paths)
                assert again.paths == group.paths
                again.thaw()
                assert process.communicate(b"awake", timeout=30)[0] == b"awake"
                again.close()
            finally:
                successor.close()


@needs_groups
def test_reopened_group_reads_and_limits(tree: Tree) -> None:
    """Restart: limits, counters and removal work from the record's paths, before any freeze too."""
    with limited(tree) as group:
        again = tree.open(group.paths)
        assert tree.list() == (group.paths,)
        again.limit(GroupLimits(64 * MB, 10, 1.0))
        with running(again, *python("x = bytearray(200 << 20)")) as process:
            assert process.wait(30) == -signal.SIGKILL
        assert group.facts().oom_kills == 1
        again.remove(timeout=20)
        with pytest.raises(FileNotFoundError):
            tree.open(group.paths)
        assert group.facts().oom_kills is None  # the descriptor outlived the group


@needs_groups
def test_place_moves_a_running_process(tree: Tree) -> None:
    with limited(tree) as group, subprocess.Popen(["sleep", "60"]) as process:
        try:
            group.place(process.pid)
            assert all(process.pid in control.members(path) for path in group.member_paths)
            assert group.facts().pids_current == 1
        finally:
            process.kill()


@needs_groups
def test_child_in_new_namespaces_enters_by_itself(tree: Tree) -> None:
    """The spawner's child already lives in its own user and pid namespace when it enters."""
    with limited(tree) as group:
        if group.directory_fd() is not None:
            pytest.skip("cgroup v2 groups are joined by clone3")
        report, answer = os.pipe()
        child = os.fork()
        if not child:
            status = 1
            with contextlib.suppress(BaseException):
                libc = __import__("ctypes").CDLL(None)
                libc.unshare(0x10000000 | 0x20000000)  # CLONE_NEWUSER | CLONE_NEWPID
                if os.fork() == 0:
                    group.enter()
                    os.write(answer, b"in" if os.getpid() == 1 else b"no namespace")
                    signal.pause()
                status = 0
            os._exit(status)
        try:
            os.close(answer)
            assert os.waitpid(child, 0)[1] == 0
            assert os.read(report, 20) == b"in"
            inside = control.members(group.member_paths[0])
            assert len(inside) == 1
        finally:
            os.close(report)
            for pid in control.members(group.member_paths[0]):
                os.kill(pid, signal.SIGKILL)


@needs_groups
def test_remove_waits_for_the_last_process_and_names_who_stays(tree: Tree) -> None:
    with limited(tree) as group, running(group, "sleep", "60") as process:
        with pytest.raises(OSError, match=rf"{process.pid}.*end them first") as refusal:
            group.remove(timeout=0.05)
        assert refusal.value.errno == errno.EBUSY
        process.kill()
        group.remove(timeout=20)
        group.remove()
        assert not any(os.path.exists(path) for path in group.paths)


@needs_groups
def test_nothing_is_left_behind() -> None:
    """Nobody forgotten: neither the groups nor the keeper's own directories, the freezer's included."""
    name = f"test-clean-{os.getpid()}"
    tree = Tree(MACHINE, name)
    groups: list[Group] = []
    try:
        groups.extend(tree.make() for _ in range(3))
        with running(groups[0], "sleep", "60"):
            groups[0].freeze(timeout=20)
        homes = {os.path.dirname(path) for group in groups for path in group.paths}
        tree.close()
        assert all(os.path.exists(home) for home in homes), "a tree with boxes must survive its keeper"
    finally:
        for group in groups:
            group.remove(timeout=20)
        tree.close()
        tree.close()
    assert not any(os.path.exists(home) for home in homes)


@needs_groups
def test_two_makers_of_one_keeper_never_share_a_group(tree: Tree) -> None:
    first = tree.make()
    other = Tree(MACHINE, tree._name.removeprefix("hutch-"))
    number = int(first.paths[0].rpartition("-")[2])
    tree._numbers = itertools.count(number)
    second, third = tree.make(), other.make()
    try:
        assert len({*first.paths, *second.paths, *third.paths}) == 3 * len(first.paths)
    finally:
        for group in (first, second, third):
            group.remove()


@needs_groups
def test_missing_directories_are_made_again(tree: Tree) -> None:
    """A keeper's spawners share them, and one may have no group at the moment when another ends."""
    other = Tree(MACHINE, tree._name.removeprefix("hutch-"))
    assert other.close()
    group = tree.make()
    assert all(map(os.path.isdir, group.member_paths))
    group.remove()


@needs_groups
def test_half_made_group_of_a_crash_is_listed_and_removed(tree: Tree) -> None:
    group = tree.make()
    if len(group.member_paths) == 1:
        group.remove()
        pytest.skip("one hierarchy holds every controller here: no group is made by halves")
    os.rmdir(group.member_paths[-1])
    (paths,) = tree.list()
    tree.open(paths).remove()
    assert tree.list() == ()


@needs_groups
@pytest.mark.parametrize("path", ["/sys/fs/cgroup", "/sys/fs/cgroup/memory/system.slice/hutch-1", "/tmp/hutch-a/x"])
def test_record_cannot_lead_to_foreign_groups(tree: Tree, path: str) -> None:
    """Never touch what we did not make, whatever a damaged record says."""
    with pytest.raises(ValueError, match="not the group of a box"):
        tree.open([path])


@pytest.mark.skipif(not os.access("/sys/fs/cgroup/unified/cgroup.procs", os.W_OK), reason="needs a hybrid machine")
def test_real_v2_group_without_controllers_freezes() -> None:
    """The v2 code on a real v2 hierarchy: SIGKILL reaches a frozen process there."""
    hierarchy = MACHINE.hierarchy("freezer")
    assert hierarchy is not None and hierarchy.version == 2
    machine = CgroupSupport("v2", False, False, False, True, "", (("freezer", hierarchy),))
    tree = Tree(machine, f"test-v2-{os.getpid()}")
    group = tree.make()
    process = subprocess.Popen(["sleep", "60"])
    try:
        group.place(process.pid)
        group.freeze(timeout=20)
        process.kill()
        assert process.wait(30) == -signal.SIGKILL
        assert group.facts().oom_kills is None
    finally:
        process.kill()
        process.wait()
        group.remove(timeout=20)
        tree.close()
    assert not os.path.exists(os.path.dirname(group.paths[0]))


@needs_groups
def test_threads_that_look_at_once_find_the_same() -> None:
    """A keeper that mistook another thread's trial group for a refusal had no limits but watchdogs, for its life."""
    with ThreadPoolExecutor(8) as threads:
        found = [each.result() for each in [threads.submit(detect) for _ in range(200)]]
    assert {each.reason for each in found} == {MACHINE.reason}
    assert all(each.memory and each.pids and each.cpu and each.freezer for each in found)


def test_ordinary_user_gets_no_groups_and_the_remedy() -> None:
    """An account without rights on the machine's real groups gets the remedy (lesson 34)."""
    if os.getuid() != 0:
        pytest.skip("needs root to become an ordinary user")
    code = "from hutch.linux.cgroups import detect; m = detect(); print(m.mode, m.memory, m.reason)"
    with tempfile.TemporaryDirectory(prefix="hc-", dir="/tmp") as readable:  # the tree itself may be closed to others
        shutil.copytree(Path(__file__).parents[2] / "src", f"{readable}/src", ignore=shutil.ignore_patterns("*.pyc"))
        os.chmod(readable, 0o755)
        drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        command = [*drop, "/usr/bin/python3", "-B", "-c", code]
        environment = {"PYTHONPATH": f"{readable}/src"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, cwd="/")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("none False ")
    assert "delegated" in done.stdout
