"""nsjail: its command line, word by word, and what is said where the program is missing."""

import shutil
import subprocess
from pathlib import Path

import pytest

from hutch.errors import ConfigError, Invalid, Refused
from hutch.model.spec import CheckedMount, CheckedMounts, MountMode, Order, Workspace
from hutch.providers.command.jail_spec import BoxParameters
from hutch.providers.command.provider import canary
from hutch.providers.nsjail import argv
from hutch.providers.nsjail import cgroups as groups
from hutch.providers.nsjail.provider import NsjailProvider

SITE = BoxParameters(directory="/run/h/box", base="/run/h/base", uid=1880001234, guest=("/.hutch/python", "boot"))

NO_GROUPS = argv.Groups(0)


def order(**changes: object) -> Order:
    made = canary("nsjail")
    limits = made.spec.limits.but(cpus=0.5, memory_mb=100, disk_mb=40, pids=16)
    places = changes.pop("places", CheckedMounts())
    return made.but(spec=made.spec.but(limits=limits, **changes), places=places)


def line(groups: argv.Groups = NO_GROUPS, **changes: object) -> list[str]:
    return argv.command("nsjail", order(**changes), SITE, groups, "POLICY")


def values(command: list[str], option: str) -> list[str]:
    return [command[at + 1] for at, word in enumerate(command[: command.index("--")]) if word == option]


def test_one_jail_for_one_box() -> None:
    """The guest is the jail's only command, and the jail has no end of its own."""
    made = line()
    assert made[0] == "nsjail" and made[made.index("--") + 1 :] == list(SITE.guest)
    assert (values(made, "--mode"), values(made, "--time_limit")) == (["o"], ["0"])


def test_every_namespace_is_its_own_and_nothing_is_kept() -> None:
    """B3: above all the network's; nsjail unshares what is not disabled."""
    made = line()
    words = made[: made.index("--")]
    assert not [word for word in words if word.startswith("--disable_clone")]
    assert not {"-N", "--keep_caps", "--cap", "--keep_env", "--rw", "--disable_no_new_privs", "--user_net"} & set(words)
    assert values(made, "--user") == values(made, "--group") == ["1000:1880001234:1"]
    assert values(made, "--seccomp_string") == ["POLICY"]


def test_files_live_in_memory_whose_parts_add_up() -> None:
    """B4: half for the workspace, a quarter each for the home and /tmp."""
    sizes = {mount.split(":")[1]: mount.split(":")[3] for mount in values(line(), "--mount")}
    assert sizes["/workspace"] == f"size={20 << 20},mode=755"
    assert sizes["/home/user"] == f"size={10 << 20},mode=755"
    assert sizes["/tmp"] == f"size={10 << 20},mode=1777"
    read_only = line(workspace=Workspace(mode=MountMode.RO))
    assert f"none:/workspace:tmpfs:ro,size={20 << 20},mode=755" in values(read_only, "--mount")


def test_limits_on_control_groups_of_version_1() -> None:
    made = line(argv.Groups(1, "PARENT", swap=True))
    held = str((100 + 40 + 16) << 20)
    assert (values(made, "--cgroup_mem_max"), values(made, "--cgroup_mem_memsw_max")) == ([held], [held])
    assert (values(made, "--cgroup_pids_max"), values(made, "--cgroup_cpu_ms_per_sec")) == (["20"], ["500"])
    assert [values(made, f"--cgroup_{name}_parent") for name in ("mem", "pids", "cpu")] == [["PARENT"]] * 3
    assert "--use_cgroupv2" not in made


def test_limits_on_control_groups_of_version_2() -> None:
    made = line(argv.Groups(2, "/sys/fs/cgroup/HUTCH"))
    assert "--use_cgroupv2" in made and values(made, "--cgroupv2_mount") == ["/sys/fs/cgroup/HUTCH"]
    assert (values(made, "--cgroup_mem_swap_max"), values(made, "--cgroup_mem_memsw_max")) == (["0"], [])


def test_without_control_groups_none_is_asked_for() -> None:
    assert not [word for word in line() if word.startswith("--cgroup")]


def test_places_of_the_machine_keep_their_modes() -> None:
    def place(target: str, mode: MountMode) -> CheckedMount:
        return CheckedMount(real=f"/data{target}", target=target, mode=mode, dev=1, ino=1)

    made = line(places=CheckedMounts(mounts=(place("/b/in", MountMode.RW), place("/b", MountMode.RO))))
    assert "/data/b:/b" in values(made, "--bindmount_ro") and "/data/b/in:/b/in" in values(made, "--bindmount")
    assert made.index("/data/b:/b") < made.index("/data/b/in:/b/in")
    for target, error in (("/proc/x", Refused), ("/.hutch/bin", Refused), ("/", Invalid), ("/a/../etc", Invalid)):
        with pytest.raises(error):
            line(places=CheckedMounts(mounts=(place(target, MountMode.RW),)))


def test_no_secret_is_on_the_command_line() -> None:
    """A command line is everybody's to read."""
    assert not [word for word in line(secrets={"TOKEN": "hush-hush"}, env={"A": "not here"}) if "hush" in word]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_refuses_what_escapes_use(machine: str) -> None:
    policy = argv.policy(machine)
    assert policy.startswith("ERRNO(1) {") and policy.endswith("} DEFAULT ALLOW")
    named = set(policy[policy.index("{") + 1 : policy.index("}")].replace(",", " ").split())
    assert {"mount", "ptrace", "bpf", "setns", "unshare", "keyctl", "io_uring_setup", "userfaultfd"} <= named
    assert ("iopl" in named) is (machine == "x86_64")


async def test_a_missing_program_is_said_with_the_way_to_get_it() -> None:
    """B26: not usable, why, and how."""
    provider = NsjailProvider()
    provider.set_directories("/nonexistent/state", "/nonexistent/run")
    provider.configure({"program": "no-such-nsjail"})
    found = await provider.probe()
    assert (found.usable, "not installed" in found.reason) == (False, True)
    assert "github.com/google/nsjail" in found.remedy and "program" in found.remedy


def test_unknown_settings_are_named() -> None:
    with pytest.raises(ConfigError, match="speed"):
        NsjailProvider().configure({"speed": 1})


async def test_a_program_that_is_no_nsjail_is_not_usable(tmp_path: Path) -> None:
    """The canary shows it: a name on the PATH proves nothing."""
    fake = tmp_path / "nsjail"
    fake.write_text("#!/bin/sh\necho this is something else >&2\nexit 3\n")
    fake.chmod(0o755)
    provider = NsjailProvider()
    provider.set_directories(str(tmp_path / "state"), str(tmp_path / "run"))
    provider.configure({"program": str(fake)})
    found = await provider.probe()
    assert not found.usable and "this is something else" in found.reason
    assert await provider.list() == ()


def test_a_machine_without_control_groups(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert groups.find(str(tmp_path / "file")) == argv.Groups(0)


@pytest.mark.skipif(shutil.which("nsjail") is None, reason="nsjail is not on the PATH")
def test_the_real_program_knows_every_word() -> None:
    answer = subprocess.run(["nsjail", "--help"], capture_output=True, text=True)
    known = {word.split("|")[0] for word in (answer.stdout + answer.stderr).split() if word.startswith("--")}
    for version in (0, 1, 2):
        made = line(argv.Groups(version, "/p", swap=True))
        assert {word for word in made[: made.index("--")] if word.startswith("--")} <= known
