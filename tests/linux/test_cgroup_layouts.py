"""Control groups in layouts that this machine does not have: plain files stand for the kernel's."""

import os
from pathlib import Path

import pytest

from hutch.linux.cgroup_detect import Hierarchy, _counts_sockets
from hutch.linux.cgroup_files import SOCKETS_FILE
from hutch.linux.cgroups import CgroupSupport, Group, GroupLimits, Tree, detect
from hutch.providers.native.cleanup import sweep_groups

MB = 1024 * 1024


def fabricate(directory: Path, **files: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name.replace("__", ".")).write_text(content)
    return directory


def mounted(tmp_path: Path, own: str, *mounts: tuple[str, str, str, str], keeper: int = 0) -> CgroupSupport:
    """`detect` with mounts (kind, point, root, options) below tmp_path."""
    lines = [
        f"{number} 1 0:{number} {root} {tmp_path}{point} rw,relatime shared:1 - {kind} {kind} {options}\n"
        for number, (kind, point, root, options) in enumerate(mounts, 30)
    ]
    (tmp_path / "mountinfo").write_text("".join(lines))
    (tmp_path / "own").write_text(own)
    return detect(str(tmp_path), str(tmp_path / "own"), str(tmp_path / "mountinfo"), keeper=keeper)


V2_MOUNT = ("cgroup2", "", "/", "rw,nsdelegate")


def v2_own(tmp_path: Path, *, enabled: str = "", procs: str = "") -> Path:
    return fabricate(
        tmp_path / "user.slice/hutch.scope",
        cgroup__controllers="cpu memory pids\n",
        cgroup__subtree_control=enabled,
        cgroup__type="domain\n",
        cgroup__freeze="0\n",
        cgroup__procs=procs,
    )


def test_nothing_mounted(tmp_path: Path) -> None:
    machine = mounted(tmp_path, "0::/\n")
    assert machine.mode == "none" and not machine.memory
    assert "no cgroup hierarchy is mounted" in machine.reason


def test_v2_delegated(tmp_path: Path) -> None:
    own = v2_own(tmp_path, procs=f"{os.getpid()}\n")
    machine = mounted(tmp_path, "0::/user.slice/hutch.scope\n", V2_MOUNT)
    assert machine.reason == ""
    assert (machine.mode, machine.memory, machine.pids, machine.cpu, machine.freezer) == ("v2", *[True] * 4)
    assert machine.hierarchy("memory") == Hierarchy(2, str(own))
    assert sorted(path.name for path in own.iterdir() if path.is_dir()) == []  # the probe is gone


def test_a_sweep_that_takes_the_trial_is_no_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody's sweep may meet the directory that proves that groups can be made: nobody holds it."""
    own = v2_own(tmp_path, procs=f"{os.getpid()}\n")
    make, swept = os.mkdir, []

    def meet(path: str, mode: int) -> None:
        make(path, mode)
        swept.extend(
            sweep_groups(CgroupSupport("v2", *[True] * 4, reason="", hierarchies=(("memory", Hierarchy(2, str(own))),)))
        )

    monkeypatch.setattr(os, "mkdir", meet)
    machine = mounted(tmp_path, "0::/user.slice/hutch.scope\n", V2_MOUNT)
    assert len(swept) == 1
    assert machine.reason == "" and machine.memory


def test_v2_after_we_moved_into_the_leaf(tmp_path: Path) -> None:
    """The keeper moved itself; the spawner it starts then must build beside the leaf, not below it."""
    own = v2_own(tmp_path, enabled="cpu memory pids")
    fabricate(own / "hutch-self")
    machine = mounted(tmp_path, "0::/user.slice/hutch.scope/hutch-self\n", V2_MOUNT)
    assert machine.hierarchy("pids") == Hierarchy(2, str(own))


def test_v2_shared_with_strangers_says_what_to_do(tmp_path: Path) -> None:
    """The obstacle and the exact fix (lesson 34)."""
    v2_own(tmp_path, procs="1\n")
    machine = mounted(tmp_path, "0::/user.slice/hutch.scope\n", V2_MOUNT)
    assert not machine.memory and machine.freezer
    assert "processes of others (1)" in machine.reason and "Delegate=yes" in machine.reason


def test_keeper_and_spawner_find_the_same(tmp_path: Path) -> None:
    """A keeper's parent, the shell of a terminal's scope, is a stranger to both; a spawner's parent is its keeper."""
    spawner, keeper, shell = os.getpid(), os.getppid(), 1
    v2_own(tmp_path, procs=f"{spawner}\n{keeper}\n")
    assert mounted(tmp_path, "0::/user.slice/hutch.scope\n", V2_MOUNT, keeper=keeper).memory
    parent = mounted(tmp_path, "0::/user.slice/hutch.scope\n", V2_MOUNT)
    assert not parent.memory and f"processes of others ({keeper})" in parent.reason
    v2_own(tmp_path, procs=f"{spawner}\n{keeper}\n{shell}\n")
    assert not mounted(tmp_path, "0::/user.slice/hutch.scope\n", V2_MOUNT, keeper=keeper).memory


def test_v2_without_controllers_says_what_to_do(tmp_path: Path) -> None:
    own = v2_own(tmp_path, enabled="pids")
    (own / "cgroup.controllers").write_text("pids")
    machine = mounted(tmp_path, "0::/user.slice/hutch.scope\n", V2_MOUNT)
    assert machine.pids and not machine.memory and not machine.cpu
    assert "no memory, cpu controller" in machine.reason and "Delegate=yes" in machine.reason


def test_v1_in_a_container_without_cgroup_namespace(tmp_path: Path) -> None:
    """The paths in /proc/self/cgroup start at the host's root, the mount at the container's group."""
    (tmp_path / "memory/jobs").mkdir(parents=True)
    (tmp_path / "cpu,cpuacct").mkdir()
    machine = mounted(
        tmp_path,
        "4:memory:/docker/abc/jobs\n3:cpu,cpuacct:/docker/abc\n",
        ("cgroup", "/memory", "/docker/abc", "rw,memory"),
        ("cgroup", "/cpu,cpuacct", "/docker/abc", "rw,cpu,cpuacct"),
    )
    assert machine.mode == "v1" and not machine.pids and "no pids controller" in machine.reason
    assert machine.hierarchy("memory") == Hierarchy(1, f"{tmp_path}/memory/jobs")
    assert machine.hierarchy("cpu") == Hierarchy(1, f"{tmp_path}/cpu,cpuacct")


@pytest.mark.parametrize("options", ["", "cgroup.memory=nosocket", "cgroup.memory=foo,nokmem"])
def test_whether_sockets_count(tmp_path: Path, options: str) -> None:
    """v2 counts them unless a kernel option says otherwise, v1 only where it has a limit for them."""
    line = tmp_path / "cmdline"
    line.write_text(f"quiet {options} panic=1\n")
    assert _counts_sockets(Hierarchy(2, str(tmp_path)), str(line)) == (not options)
    assert not _counts_sockets(Hierarchy(1, str(tmp_path)), str(line))
    fabricate(tmp_path, **{SOCKETS_FILE: "0"})
    assert _counts_sockets(Hierarchy(1, str(tmp_path)), str(line)) == (not options)


def test_hybrid_takes_controllers_from_v1_and_the_freezer_from_v2(tmp_path: Path) -> None:
    for name in ("memory", "pids", "cpu", "freezer"):
        (tmp_path / name).mkdir()
    fabricate(tmp_path / "unified", cgroup__controllers="", cgroup__subtree_control="", cgroup__procs="")
    mounts = [("cgroup", f"/{name}", "/", f"rw,{name}") for name in ("memory", "pids", "cpu", "freezer")]
    own = "4:memory:/\n3:pids:/\n2:cpu:/\n1:freezer:/\n0::/\n"
    machine = mounted(tmp_path, own, *mounts, ("cgroup2", "/unified", "/", "rw"))
    assert machine.mode == "hybrid" and machine.reason == ""
    assert machine.hierarchy("memory") == Hierarchy(1, f"{tmp_path}/memory")
    assert machine.hierarchy("freezer") == Hierarchy(2, f"{tmp_path}/unified")


@pytest.fixture
def v2_group(tmp_path: Path) -> tuple[Group, Path]:
    v2_own(tmp_path, enabled="cpu memory pids", procs="")
    machine = mounted(tmp_path, "0::/user.slice/hutch.scope\n", V2_MOUNT)
    home = fabricate(tmp_path / "user.slice/hutch.scope/hutch-k", cgroup__subtree_control="")
    group = Tree(machine, "k").make()
    assert (home / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    (path,) = group.paths
    assert Path(path).parent == home
    directory = fabricate(
        Path(path),
        cgroup__procs="",
        cgroup__freeze="0\n",
        cgroup__events="populated 1\nfrozen 1\n",
        memory__max="max\n",
        memory__swap__max="max\n",
        memory__current="4096\n",
        memory__peak="8192\n",
        memory__events="low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 9\n",
        pids__max="max\n",
        pids__events="max 5\n",
        pids__current="3\n",
        cpu__max="max 100000\n",
        cpu__stat="usage_usec 9\nnr_periods 8\nnr_throttled 4\nthrottled_usec 1\n",
    )
    return group, directory


def test_v2_limits(v2_group: tuple[Group, Path]) -> None:
    group, directory = v2_group
    for name in ("memory.max", "memory.swap.max", "pids.max", "cpu.max"):
        (directory / name).write_text("")
    group.limit(GroupLimits(64 * MB, 20, 0.5))
    written = {
        name: (directory / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max", "cpu.max")
    }
    assert written == {
        "memory.max": str(64 * MB),
        "memory.swap.max": "0",
        "pids.max": "28",
        "cpu.max": "50000 100000",
    }
    with pytest.raises(OSError, match="more memory is in use"):
        group.limit(GroupLimits(1024, 20, 0.5))


def test_v2_facts(v2_group: tuple[Group, Path]) -> None:
    group, directory = v2_group
    facts = group.facts()
    assert (facts.oom_kills, facts.pids_hits, facts.throttled) == (2, 5, 4)
    assert (facts.memory_peak_bytes, facts.memory_current, facts.pids_current) == (8192, 4096, 3)
    group.close()
    (directory / "memory.peak").unlink()  # Linux before 5.19
    assert group.facts().memory_peak_bytes is None
    group.close()


def test_v2_freezes_in_place(v2_group: tuple[Group, Path]) -> None:
    group, directory = v2_group
    group.freeze(timeout=1)
    assert (directory / "cgroup.freeze").read_text().startswith("1")
    group.thaw()
    assert (directory / "cgroup.freeze").read_text().startswith("0")
    descriptor = group.directory_fd()
    assert descriptor is not None and os.fstat(descriptor).st_ino == directory.stat().st_ino
    group.close()


def test_freeze_that_does_not_settle_is_taken_back(v2_group: tuple[Group, Path]) -> None:
    group, directory = v2_group
    (directory / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    with pytest.raises(TimeoutError, match="thawed again"):
        group.freeze(timeout=0.05)
    assert (directory / "cgroup.freeze").read_text().startswith("0")
