"""A machine that lacks something: the command line says what, and how to get it, and leaves nothing half made."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_process import HUTCH
from tests.leaks import leaving_no_trace

pytestmark = pytest.mark.slow

# In namespaces of its own the program changes what it likes about its machine: a small disk, a bound of namespaces, no
# control groups, no tun device.
POOR = """
import os, subprocess, sys
from hutch.linux import kernel
from hutch.providers.native.network.namespaces import unshare_mapped
if os.geteuid() or sys.argv[1] == "namespaces":
    unshare_mapped(os.geteuid(), os.getegid())
if sys.argv[1] == "namespaces":
    open("/proc/sys/user/max_user_namespaces", "w").write("0")
else:
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    size = "3m" if sys.argv[1] == "disk" else "64k"
    place = {"disk": ".", "cgroups": "/sys/fs/cgroup", "tun": "/dev/net"}[sys.argv[1]]
    kernel.mount("tmpfs", place, "tmpfs", 0, f"mode=0777,size={size}")
    os.chdir(os.getcwd())
sys.exit(subprocess.run(["sh", "-c", sys.argv[2]]).returncode)
"""


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path leaves room for the names of sockets."""
    with tempfile.TemporaryDirectory(prefix="h-", dir="/tmp") as directory:
        yield Path(directory)


def on_a_machine_poor_in(what: str, directory: Path, script: str) -> list[Any]:
    """The JSON lines that a script says there; when it has ended nothing of any box is left."""
    environ = {
        **os.environ, "HUTCH": shlex.join(HUTCH), "HOME": str(directory), "HUTCH_STATE_DIR": f"{directory}/s",
        "HUTCH_RUN_DIR": f"{directory}/r",
    }  # fmt: skip
    command = [sys.executable, "-c", POOR, what, script]
    with leaving_no_trace(directory / "r", directory / "s"):
        done = subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_full_disk_is_said_to_be_full_and_nothing_remains(short: Path) -> None:
    """Issue "bad input": typed, with a remedy; and when there is space again, all is as if nothing had happened."""
    script = """
        dd if=/dev/zero of=fill bs=4k 2>/dev/null
        $HUTCH run --json -- true
        $HUTCH box create --json
        rm fill
        $HUTCH box list --json
        $HUTCH prune --json
        $HUTCH run --json -- true
    """
    run, create, boxes, pruned, again = on_a_machine_poor_in("disk", short, script)
    assert run["error"]["code"] == "unavailable" and "No space left" in run["error"]["message"]
    assert "free space" in run["error"]["remedy"]
    assert create["error"]["code"] == "unavailable" and "free space" in create["error"]["remedy"]
    assert boxes == {"boxes": []}
    assert [each for each in pruned["leftovers"] if each["kind"] != "group"] == [], "groups may be anybody's"
    assert again["exit_code"] == 0


def test_doctor_sees_a_full_disk(short: Path) -> None:
    (report,) = on_a_machine_poor_in("disk", short, "dd if=/dev/zero of=fill bs=4k 2>&-; $HUTCH doctor --json; :")
    finding = next(each for each in report["findings"] if each["name"] == "state directory")
    assert (finding["state"], "no space is left" in finding["found"]) == ("fail", True)
    assert "HUTCH_STATE_DIR" in finding["fix"]


def test_a_machine_without_user_namespaces_gets_the_fix(short: Path) -> None:
    """The obstacle and the exact fix, and no box, no process, no directory of one (lesson 34)."""
    script = "$HUTCH run --json -- true; $HUTCH box create --json; $HUTCH doctor --json; :"
    run, create, report = on_a_machine_poor_in("namespaces", short, script)
    for answer in (run, create):
        assert answer["error"]["code"] == "unavailable" and "max_user_namespaces is 0" in answer["error"]["message"]
        assert answer["error"]["remedy"] == "sysctl -w user.max_user_namespaces=15000"
    assert not report["usable"]
    assert [path for path in (short / "r").rglob("*") if path.name != "keepers"] == []
    assert not (short / "s" / "boxes").exists()


HOG = "python3 -c 'import time; x = bytearray(200 << 20); time.sleep(60)'"


def test_a_machine_without_control_groups_has_boxes_with_weaker_grades(short: Path) -> None:
    """Limits bite all the same, by what there is; and who insists on more is refused, with the way to get it."""
    script = f"""
        $HUTCH doctor --json
        $HUTCH run --json -- true
        $HUTCH run --json --memory 64 --timeout 50 -- {HOG}
        HUTCH_STRICT=true $HUTCH run --json -- true
        HUTCH_STRICT=true $HUTCH box create --json
        $HUTCH box list --json
    """
    report, run, hog, strict, create, boxes = on_a_machine_poor_in("cgroups", short, script)
    findings = {each["name"]: each for each in report["findings"]}
    assert report["usable"]
    assert "nothing usable" in findings["cgroups"]["found"]
    assert findings["cgroups"]["state"] != "ok" and findings["cgroups"]["fix"]
    for held in ("cpus by watchdog", "memory_mb by watchdog", "pids by rlimit", "disk_mb by quota"):
        assert held in findings["limits"]["found"]
    assert (run["exit_code"], run["verdict"]["cause"]) == (0, "ok")
    assert hog["verdict"]["cause"] == "oom" and hog["verdict"]["remedy"]
    for answer in (strict, create):
        assert answer["error"]["code"] == "refused" and "strict" in answer["error"]["message"]
        assert "Delegate=yes" in answer["error"]["remedy"]
    assert boxes == {"boxes": []}
    assert not list((short / "s").glob("boxes/*"))


def test_a_machine_without_tun_gives_no_network_it_cannot_keep(short: Path) -> None:
    """A box without a network lives; one with a network is refused with the fix, unless the machine routes it."""
    if not os.path.isdir("/dev/net"):
        pytest.skip("this machine has no /dev/net, so that there is nothing to hide")
    script = """
        $HUTCH doctor --json
        $HUTCH run --json -- true
        $HUTCH run --json --net on -- true
        $HUTCH box create --json --net on
        $HUTCH box destroy --all --force >&2
        $HUTCH box list --json
    """
    report, off, on, create, boxes = on_a_machine_poor_in("tun", short, script)
    assert report["usable"] and off["exit_code"] == 0
    network = next(each for each in report["findings"] if each["name"] == "network")
    if "veth" in network["found"]:
        assert on["exit_code"] == 0 and "error" not in create, "root routes packets itself"
    else:
        for answer in (on, create):
            assert answer["error"]["code"] == "unsupported" and "/dev/net/tun" in answer["error"]["message"]
            assert "modprobe tun" in answer["error"]["remedy"]
        assert network["fix"]
    assert boxes == {"boxes": []}
    assert not list((short / "s").glob("boxes/*"))
