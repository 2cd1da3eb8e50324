"""Docker: a daemon of our own, without a bridge and without a firewall rule, so that the machine stays as it is."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from bench.peers.daemon import CGROUP, daemon
from bench.peers.engine import Engine
from bench.peers.errors import PeerMissing


@contextlib.contextmanager
def docker(directory: Path) -> Iterator[Engine]:
    program = shutil.which("dockerd")
    if program is None:
        raise PeerMissing("dockerd is not installed (make setup-bench)")
    if os.geteuid() != 0:
        raise PeerMissing("its daemon needs root")
    sock, settings = directory / "docker.sock", directory / "daemon.json"
    runsc = shutil.which("runsc")
    # gVisor makes its own network stack unless an option says that there is none.
    runtimes = {"runsc": {"path": runsc, "runtimeArgs": ["--network=none"]}} if runsc else {}
    settings.write_text(json.dumps({"runtimes": runtimes}))
    argv = [
        program, "--config-file", str(settings), "--data-root", str(directory / "data"),
        "--exec-root", str(directory / "exec"), "--pidfile", str(directory / "docker.pid"), "--host", f"unix://{sock}",
        "--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", CGROUP,
        "--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false",
    ]  # fmt: skip
    with daemon(_in_own_mount_namespace(argv, directory), sock):
        engine = Engine("docker", sock, {})
        engine.load_image()
        try:
            yield engine
        finally:
            engine.remove_all()


def _in_own_mount_namespace(argv: list[str], directory: Path) -> list[str]:
    """The daemon in a mount namespace with a /dev/null of its own; what it mounts is removed with the namespace.

    runsc gives its standard streams to `nobody`, and those of a detached container are the machine's /dev/null.
    """
    null = directory / "null"
    private = 'mknod -m 666 "$0" c 1 3 && mount --bind "$0" /dev/null && exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", private, str(null), *argv]


def run_true(engine: Engine, runtime: str = "runc") -> list[str]:
    """The command line that a person would type."""
    program = shutil.which("docker")
    if program is None:
        raise PeerMissing("the docker command is not installed")
    limits = ["--memory=512m", "--cpus=1", "--pids-limit=128", "--network=none", f"--runtime={runtime}"]
    return [program, f"--host=unix://{engine.path}", "run", "--rm", *limits, "hutch-bench", "true"]


# --- gVisor: `runsc` as a runtime of the same daemon ---------------------------------------------------------------


def runsc(docker_engine: Engine | None) -> Engine:
    if shutil.which("runsc") is None:
        raise PeerMissing("runsc is not installed (make setup-bench)")
    if docker_engine is None:
        raise PeerMissing("measured as a runtime of Docker, which is missing")
    return Engine("runsc", docker_engine.path, {"Runtime": "runsc"})


def runsc_version() -> str:
    return subprocess.run(["runsc", "--version"], capture_output=True, text=True).stdout.splitlines()[0].split()[-1]
