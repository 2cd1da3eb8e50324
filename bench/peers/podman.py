"""Podman: its API service, with runc as Docker has, storage and sockets in a directory of the bench."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from bench.peers.daemon import CGROUP, daemon
from bench.peers.engine import Engine
from bench.peers.errors import PeerMissing

# Podman raises these to the machine's maxima unless an option says otherwise, and a machine may forbid that.
LIMITS = {"nofile": 1024, "nproc": 1024}


@contextlib.contextmanager
def podman(directory: Path) -> Iterator[Engine]:
    if os.geteuid() != 0:
        raise PeerMissing("measured as root only, beside Docker")
    sock = directory / "podman.sock"
    # The service leaves what was uploaded to it in TMPDIR.
    argv = ["env", f"TMPDIR={directory}", *_program(directory), "system", "service", "--time=0", f"unix://{sock}"]
    with daemon(argv, sock):
        ulimits = [{"Name": name, "Soft": value, "Hard": value} for name, value in LIMITS.items()]
        engine = Engine("podman", sock, {"Ulimits": ulimits, "CgroupParent": CGROUP})
        engine.load_image()
        try:
            yield engine
        finally:
            engine.remove_all()


def run_true(engine: Engine) -> list[str]:
    """The command line that a person would type."""
    ulimits = [f"--ulimit={name}={value}:{value}" for name, value in LIMITS.items()]
    limits = ["--memory=512m", "--cpus=1", "--pids-limit=128", "--network=none", f"--cgroup-parent={CGROUP}"]
    return [*_program(engine.path.parent), "run", "--rm", *limits, *ulimits, "hutch-bench", "true"]


def _program(directory: Path) -> list[str]:
    program, runc = shutil.which("podman"), shutil.which("runc")
    if program is None or runc is None:
        raise PeerMissing(f"{'runc' if program else 'podman'} is not installed (make setup-bench)")
    return [
        program, "--root", str(directory / "root"), "--runroot", str(directory / "run"),
        "--tmpdir", str(directory / "tmp"), "--cgroup-manager=cgroupfs", "--events-backend=none", "--runtime", runc,
    ]  # fmt: skip
