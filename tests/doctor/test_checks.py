"""The doctor's checks on machines that are not here: each obstacle has its consequence and its fix (S11, lesson 34)."""

import os
from pathlib import Path

import pytest

from hutch.doctor import canary, checks, facts, trials
from hutch.doctor.facts import Facts, Place
from hutch.doctor.findings import DISTRIBUTIONS, KERNELS, Finding, Standing, usable
from hutch.linux.cgroup_detect import CgroupSupport
from hutch.model.capabilities import Capabilities
from hutch.model.limits import EnforcedBy, Grades
from hutch.providers.native import obstacles
from hutch.providers.native.network.availability import CARRIED, Availability

GOOD_TRIALS = dict.fromkeys(trials.STEPS, "")
GOOD = Facts(
    kernel="6.8.0-45-generic",
    distribution="Ubuntu 24.04 LTS",
    trials=GOOD_TRIALS,
    cgroups=CgroupSupport("v2", True, True, True, True, ""),
    network=Availability(True, CARRIED),
)


def but(**changes: object) -> Facts:
    return Facts(**{**{name: getattr(GOOD, name) for name in GOOD.__dataclass_fields__}, **changes})


def named(machine: Facts, name: str) -> Finding:
    found = [finding for finding in checks.findings(machine) if finding.name == name]
    assert len(found) == 1, found
    return found[0]


def test_a_good_machine_has_nothing_to_fix() -> None:
    """B-doctor: everything ok, no consequence and no fix to read."""
    found = checks.findings(GOOD)
    assert usable(found)
    assert all(finding.state is Standing.OK and not finding.fix for finding in found)


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_elsewhere_than_linux_it_says_so_plainly(system: str) -> None:
    """DESIGN §13: on macOS and Windows the native engine says that it is for Linux, and nothing else is claimed."""
    (finding,) = checks.findings(Facts(platform=system))
    assert finding.state is Standing.FAIL
    assert "for Linux" in finding.consequence


@pytest.mark.parametrize(
    ("machine", "name", "fix"),
    [
        (but(kernel="5.10.0-30-amd64"), "kernel", "upgrade"),
        (but(machine="riscv64"), "architecture", "x86_64"),
        (but(python=(3, 10, 4)), "python", "3.11"),
        (but(sysctls={"user.max_user_namespaces": "0"}), "user namespaces", "user.max_user_namespaces=15000"),
        (
            but(euid=1000, sysctls={"kernel.unprivileged_userns_clone": "0"}),
            "user namespaces",
            "sysctl -w kernel.unprivileged_userns_clone=1",
        ),
        (
            but(container="docker", trials={"user namespace": "unshare: EPERM (Operation not permitted)"}),
            "user namespaces",
            "--security-opt seccomp=unconfined",
        ),
        (
            but(
                euid=1000,
                sysctls={"kernel.apparmor_restrict_unprivileged_userns": "1"},
                trials={"user namespace": "", "mount": "mount /: EACCES (Permission denied)"},
            ),
            "apparmor",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        (
            but(container="docker", trials={**GOOD_TRIALS, "proc": "mount proc: EPERM (Operation not permitted)"}),
            "proc in a user namespace",
            "systempaths=unconfined",
        ),
        (
            but(trials={**GOOD_TRIALS, "overlay": "mount /tmp/merged: ENODEV (No such device)"}),
            "overlay in a user namespace",
            "modprobe overlay",
        ),
        (but(seccomp=False), "seccomp", "CONFIG_SECCOMP_FILTER"),
        (but(state=Place(path="/s", obstacle="/ cannot be written to")), "state directory", "HUTCH_STATE_DIR"),
        (but(run=Place(path="/r", obstacle="/ cannot be written to")), "run directory", "HUTCH_RUN_DIR"),
    ],
)
def test_what_makes_boxes_impossible(machine: Facts, name: str, fix: str) -> None:
    """Lesson 34: each obstacle is named, fails the machine, and its fix can be pasted."""
    finding = named(machine, name)
    assert finding.state is Standing.FAIL
    assert finding.consequence
    assert fix in finding.fix
    assert not usable(checks.findings(machine))


@pytest.mark.parametrize(
    ("machine", "name", "fix"),
    [
        (
            but(shared_roots=(Place(path="/srv/bot", obstacle="there is no such directory"),)),
            "shared with LangBot",
            "langbot_shared_roots",
        ),
        (but(kernel="5.15.0-100-generic"), "kernel", "6.6"),
        (but(closed_to_others="/root", installed="/root/v/hutch"), "installation", "/opt/hutch"),
        (but(trials={**GOOD_TRIALS, "overlay opaque": "EOPNOTSUPP"}), "tmpfs user xattrs", "6.6"),
        (but(landlock=0), "landlock", "lsm="),
        (but(landlock=1), "landlock", "5.19"),
        (but(euid=1000, ranges=False), "identity", "as root"),
        (
            but(cgroups=CgroupSupport("none", False, False, False, False, "no hierarchy is mounted")),
            "cgroups",
            "no hierarchy",
        ),
        (
            but(network=Availability(False, CARRIED, "pasta is not installed", "install passt")),
            "network",
            "install passt",
        ),
        (but(previews="https://p.example.org", previews_resolve=False), "previews", "wildcard DNS entry"),
    ],
)
def test_what_makes_boxes_weaker(machine: Facts, name: str, fix: str) -> None:
    """A warning leaves the machine usable, and says what is lost."""
    finding = named(machine, name)
    assert finding.state is Standing.WARN
    assert finding.consequence
    assert fix in finding.fix
    assert usable(checks.findings(machine))


def test_apparmors_restriction_does_not_stop_root() -> None:
    """Ubuntu 24.04: the rule is about ordinary users; root gets no such advice."""
    machine = but(sysctls={"kernel.apparmor_restrict_unprivileged_userns": "1"})
    assert named(machine, "apparmor").state is Standing.OK


def test_a_closed_home_is_found_by_its_modes(hutch_directories: Path) -> None:
    """Lesson 34: installed under /root and the like."""
    home = hutch_directories / "home"
    package = home / "venv" / "hutch"
    package.mkdir(parents=True)
    home.chmod(0o755)
    assert facts.closed_to_others(package) == ""
    home.chmod(0o700)
    assert facts.closed_to_others(package) == str(home)


def test_a_place_that_cannot_be_made_is_an_obstacle(tmp_path: Path) -> None:
    """A directory that does not exist yet is judged by the one it would be made in; a file in the way is named."""
    assert facts.place(tmp_path / "a" / "b").obstacle == ""
    (tmp_path / "file").write_text("")
    assert "not a directory" in facts.place(tmp_path / "file" / "b").obstacle
    if os.geteuid() != 0:
        closed = tmp_path / "closed"
        closed.mkdir(0o500)
        assert "cannot be written to" in facts.place(closed / "b").obstacle


def test_the_trials_leave_no_trace() -> None:
    """The steps are really tried, in a fork: our own namespaces and mounts stay as they are."""
    before = surroundings()
    answers = trials.run()
    assert set(answers) <= set(trials.STEPS)
    assert "user namespace" in answers
    assert surroundings() == before


def surroundings() -> tuple[str, str, str]:
    namespaces = (os.readlink("/proc/self/ns/mnt"), os.readlink("/proc/self/ns/user"))
    return (*namespaces, Path("/proc/self/mounts").read_text())


def test_doctor_and_engine_agree_on_the_oldest_kernel() -> None:
    assert checks.KERNEL_FLOOR == obstacles.OLDEST


def test_what_systemd_mounts_in_proc_covers_nothing(tmp_path: Path) -> None:
    """Else every failure on a usual machine is put down to a container."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text("30 22 0:28 / /proc/sys/fs/binfmt_misc rw - autofs systemd-1 rw\n")
    assert obstacles.masked_proc(str(mounts)) is None
    mounts.write_text("30 22 0:28 / /proc/kcore rw - tmpfs tmpfs rw\n")
    assert "/proc/kcore" in str(obstacles.masked_proc(str(mounts)))


def test_a_limit_that_nothing_holds_is_a_warning() -> None:
    """DESIGN §4: grades are shown, and `none` with what follows from it."""
    held = Grades(**dict.fromkeys(("cpus", "memory_mb", "pids", "disk_mb", "open_files"), EnforcedBy.CGROUP))
    assert canary.of_limits(Capabilities(provider="native", grades=held)).state is Standing.OK
    finding = canary.of_limits(Capabilities(provider="native", grades=held.but(cpus=EnforcedBy.NONE)))
    assert finding.state is Standing.WARN
    assert "nothing holds cpus" in finding.consequence


def test_the_matrix_names_what_doctor_knows() -> None:
    """DESIGN §13: kernels and distributions, each with its fallback."""
    assert all(all(row) for row in (*KERNELS, *DISTRIBUTIONS))
    assert any("24.04" in row[0] for row in DISTRIBUTIONS)
