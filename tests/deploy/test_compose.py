"""deploy/compose.yaml as it is, brought up by a compose program on an engine of the test's own, which also makes boxes
for it: its socket is mounted, and it knows the same places by other names (B42)."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from bench.peers.errors import PeerMissing
from bench.peers.podman import LIMITS
from bench.peers.rootfs import tarball

from tests.deploy.test_container import COMPOSE, TREE, context
from tests.proofs import write
from tests.providers import daemons, rootfs
from tests.server.serving import until

URL = "http://127.0.0.1:7300"
CONFIG = """
[providers.podman]
host = "unix:///run/engine.sock"
image = "{image}"
cgroup_parent = "{cgroup}"
paths = {{"/srv/work" = "{there}", "/srv/work/wrong" = "{there}/right"}}
"""


class Podman:
    """The podman command on the storage of the test's engine, with that engine's mounts."""

    def __init__(self, engine: daemons.Daemon) -> None:
        self.top = engine.socket.parent
        self._engine = engine
        places = {"root": "root", "runroot": "run", "tmpdir": "tmp", "network-config-dir": "net"}
        self._command = ["podman", *(f"--{option}={self.top / name}" for option, name in places.items())]
        runc = shutil.which("runc", path=daemons.PATH)
        self._command += ["--cgroup-manager=cgroupfs", "--events-backend=none", f"--runtime={runc}"]
        self.env = {**os.environ, "PATH": daemons.PATH, "TMPDIR": str(self.top)}
        (self.top / "net").mkdir()

    def __call__(self, *arguments: str) -> str:
        """In the machine's network: what is built has to be fetched."""
        only_mounts = [word for word in self._engine.inside if word != "--net"]
        return _good([*only_mounts, *self._command, *arguments], self.env)

    def program(self) -> Path:
        """The same as one file, in the engine's own network: networks and ports are made there."""
        path = self.top / "podman"
        path.write_text(f'#!/bin/sh\nexec {" ".join([*self._engine.inside, *self._command])} "$@"\n')
        path.chmod(0o755)
        return path


def _good(command: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, (command[-3:], done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout.strip()


def built(podman: Podman, top: Path) -> None:
    podman("import", str(tarball()), "hutch-base")
    podman(
        "build", "--network=host", f"--cgroup-parent={daemons.CGROUP}", "--build-arg=BASE=hutch-base",
        "--build-arg=PIP_FLAGS=--no-index --find-links=/src", "--tag=hutch",
        f"--file={TREE / 'deploy' / 'Containerfile'}", str(context(top)),
    )  # fmt: skip


@contextmanager
def up(podman: Podman, **settings: str) -> Iterator[None]:
    """Both files, unchanged. Only what the machine does not allow an engine is configured."""
    allowed = " ".join(f"--ulimit={name}={value}:{value}" for name, value in LIMITS.items())
    compose = [
        str(Path(sys.executable).with_name("podman-compose")), f"--podman-path={podman.program()}",
        f"--podman-run-args=--cgroup-parent={daemons.CGROUP} {allowed}",
        "-f", str(COMPOSE), "-f", str(COMPOSE.with_name("compose.engine.yaml")),
    ]  # fmt: skip
    env = podman.env | settings
    try:
        _good([*compose, "up", "-d"], env)
        yield
    finally:
        _good([*compose, "down", "--volumes", "--timeout=10"], env)


class Caller:
    """Somebody on the machine, as the engine's network has it."""

    def __init__(self, engine: daemons.Daemon, key: str) -> None:
        self._curl = [*engine.inside, "curl", "--silent", "--header", f"Authorization: Bearer {key}"]

    def __call__(self, path: str, **body: Any) -> dict[str, Any]:
        data = ["--data", json.dumps(body)] if body else []
        said = subprocess.run([*self._curl, *data, f"{URL}{path}"], capture_output=True, text=True).stdout
        answer: dict[str, Any] = json.loads(said) if said else {}
        return answer

    def output(self, box: dict[str, Any], command: str) -> str:
        assert "id" in box, box
        text: str = self(f"/v1/boxes/{box['id']}/exec", command=command)["stdout"]
        return text


@pytest.mark.proof
def test_the_compose_file_is_brought_up(tmp_path: Path) -> None:
    """Boxes inside the container, and boxes on the engine beside it with a place that both know by other
    names; a map that leads elsewhere is found out before a command runs (B42)."""
    work = tmp_path / "there"
    for name in ("right", "wrong"):
        (work / name).mkdir(parents=True)
        (work / name).chmod(0o777)
        (work / name / "file").write_text(name)
    config = tmp_path / "hutch.toml"
    config.write_text(CONFIG.format(image=rootfs.NAME, cgroup=daemons.CGROUP, there=work))
    with daemons.podman() as engine:
        podman = Podman(engine)
        try:
            built(podman, tmp_path / "context")
        except PeerMissing as missing:
            pytest.skip(str(missing))
        with up(podman, HUTCH_ENGINE_SOCKET=str(engine.socket), HUTCH_WORK=str(work), HUTCH_CONFIG=str(config)):
            until(lambda: Caller(engine, "")("/healthz"))
            caller = Caller(engine, podman("exec", "deploy_hutch_1", "cat", "/var/lib/hutch/first-key"))
            inside = caller("/v1/boxes", provider="native")
            assert caller.output(inside, "echo $((6*7)); id -u") == "42\n1000\n"
            beside = caller("/v1/boxes", provider="podman", network="off", workspace="/srv/work/right")
            assert caller.output(beside, "cat file; echo from the box >made") == "right"
            assert (work / "right" / "made").read_text() == "from the box\n"
            refused = caller("/v1/boxes", provider="podman", network="off", workspace="/srv/work/wrong")
            assert (refused["code"], "does not see our" in refused["message"]) == ("refused", True), refused
            assert not (work / "wrong" / "made").exists()
            provider = caller(f"/v1/boxes/{beside['id']}")["spec"]["provider"]
    write("server-compose", boxes=["native", provider], compose="podman-compose")
