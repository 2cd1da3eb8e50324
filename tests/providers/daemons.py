"""Real engines for the tests, each started and ended by them: their own directories, control groups and namespaces.

They run in a network namespace of their own, so that neither their bridges nor their firewall rules touch the machine.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.peers.daemon import CGROUP, scratch_directory

from hutch.providers.docker.engine.api import Engine
from hutch.providers.docker.engine.endpoint import Endpoint
from hutch.providers.docker.provider import DockerProvider, PodmanProvider
from tests.providers import rootfs

TIMEOUT = 60.0
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
# What would be the machine's is made the daemon's own: mounts, interfaces, rules, and a /dev/null (runsc gives its
# standard streams, which may be the machine's, to `nobody`).
APART = (
    'ip link set lo up && mknod -m 666 "$0" c 1 3 && mount --bind "$0" /dev/null && echo ready && exec sleep infinity'
)


class Daemon:
    """One engine's process, which may be killed and started again in the same surroundings."""

    def __init__(self, directory: Path, name: str, argv: list[str]) -> None:
        self.socket = directory / f"{name}.sock"
        self._log = directory / f"{name}.log"
        self._argv = argv
        self._process: subprocess.Popen[bytes] | None = None
        self._surroundings = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--net", "--propagation", "private",
             "sh", "-c", APART, str(directory / "null")],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True, env={**os.environ, "PATH": PATH},
        )  # fmt: skip
        assert self._surroundings.stdout is not None
        assert self._surroundings.stdout.readline() == b"ready\n"

    @property
    def inside(self) -> list[str]:
        """How a program gets into the engine's network."""
        return ["nsenter", "--target", str(self._surroundings.pid), "--mount", "--net"]

    @property
    def host(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *self.inside, *self._argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PATH": PATH},
            )
        deadline = time.monotonic() + TIMEOUT
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the daemon did not come up: {self._log.read_text(errors='replace')[-1000:]}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        if not self.socket.exists():
            return False
        ask = ["curl", "--silent", "--fail", "--unix-socket", str(self.socket), "http://engine/_ping"]
        return subprocess.run(ask, capture_output=True).returncode == 0

    def kill(self) -> None:
        """As a crash would: its containers' processes keep running."""
        self._end(signal.SIGKILL)
        self.socket.unlink(missing_ok=True)
        # Its containerd ends with it, a moment later; a new daemon would take one that dies, or lies dead, for its own.
        number = self.socket.parent / "exec/containerd/containerd.pid"
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            ended = os.pidfd_open(int(number.read_text()))
            select.select([ended], [], [], TIMEOUT)
            os.close(ended)
        number.unlink(missing_ok=True)

    def stop(self) -> None:
        self._end(signal.SIGTERM)
        self._surroundings.kill()
        self._surroundings.wait()

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
        self._process.wait(TIMEOUT)
        self._process = None


@contextlib.contextmanager
def docker(*, live_restore: bool = False) -> Iterator[Daemon]:
    _needs("dockerd", "runc", "unshare", "nsenter", "ip", "curl")
    with scratch_directory() as directory:
        # This runsc takes a namespace without a route for the machine's own, unless an option says that there is none.
        arguments = {"runsc": ["--network=none"], "crun": []}
        found = {name: _found(name) for name in arguments}
        runtimes = {name: {"path": path, "runtimeArgs": arguments[name]} for name, path in found.items() if path}
        settings = directory / "daemon.json"
        settings.write_text(json.dumps({"runtimes": runtimes, "live-restore": live_restore}))
        argv = [
            "dockerd", "--config-file", str(settings), "--data-root", str(directory / "data"),
            "--exec-root", str(directory / "exec"), "--pidfile", str(directory / "docker.pid"),
            "--host", f"unix://{directory}/docker.sock", "--exec-opt", "native.cgroupdriver=cgroupfs",
            "--cgroup-parent", CGROUP, "--bridge=none", "--iptables=false", "--ip6tables=false",
        ]  # fmt: skip
        yield from _running(Daemon(directory, "docker", argv))


@contextlib.contextmanager
def podman() -> Iterator[Daemon]:
    _needs("podman", "runc", "unshare", "nsenter", "ip", "curl")
    with scratch_directory() as directory:
        argv = [
            "env", f"TMPDIR={directory}", "podman", "--root", str(directory / "root"),
            "--runroot", str(directory / "run"), "--tmpdir", str(directory / "tmp"), "--cgroup-manager=cgroupfs",
            "--events-backend=none", "--runtime", _found("runc") or "runc", "system", "service", "--time=0",
            f"unix://{directory}/podman.sock",
        ]  # fmt: skip
        yield from _running(Daemon(directory, "podman", argv))


def _running(daemon: Daemon) -> Iterator[Daemon]:
    try:
        daemon.start()
        for name, packed in ((rootfs.NAME, rootfs.archive()), (rootfs.SMALL, rootfs.small())):
            load(daemon, name, packed)
        yield daemon
    finally:
        with contextlib.suppress(Exception):  # whatever it has left is removed with its directory
            empty(daemon)
        daemon.stop()


def load(daemon: Daemon, name: str, packed: bytes) -> None:
    run(engine_of(daemon).load_image(name, packed))


def empty(daemon: Daemon) -> None:
    """Remove every container, so that none outlives its engine."""

    async def remove() -> None:
        engine = engine_of(daemon)
        for container in await engine.call("GET", "/containers/json", query={"all": True}):
            await engine.remove(container["Id"])

    run(remove())


def engine_of(daemon: Daemon) -> Engine:
    return Engine(Endpoint(path=str(daemon.socket)))


def run(work: Any) -> Any:
    import asyncio

    return asyncio.run(work)


def provider(daemon: Daemon, state: Path | str, **settings: Any) -> DockerProvider:
    """A provider on this engine, with containers below the tests' own control group."""
    made = PodmanProvider() if daemon.socket.name.startswith("podman") else DockerProvider()
    table = {"host": daemon.host, "image": rootfs.NAME, "cgroup_parent": CGROUP, "state_dir": str(state)}
    made.configure({**table, **settings})
    return made


def _found(program: str) -> str | None:
    return shutil.which(program, path=PATH)


def _needs(*programs: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("an engine of the tests' own needs root")
    for program in programs:
        if _found(program) is None:
            pytest.skip(f"{program} is not installed (tools/setup.sh)")
