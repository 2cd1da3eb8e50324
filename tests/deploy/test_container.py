"""deploy/Containerfile and deploy/compose.yaml: understood by a compose program; built and run in `make prove`."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from bench.peers.docker import docker
from bench.peers.errors import PeerMissing

from hutch import Hutch
from hutch.model.limits import EnforcedBy
from tests.proofs import write
from tests.server.serving import until

TREE = Path(__file__).parents[2]
COMPOSE = TREE / "deploy" / "compose.yaml"


def service() -> dict[str, Any]:
    """The one service, as the compose program understands the file."""
    program = Path(sys.executable).with_name("podman-compose")
    if not program.exists():
        pytest.skip("podman-compose is not installed")
    said = subprocess.run([program, "-f", str(COMPOSE), "config"], capture_output=True, text=True, check=True)
    found: dict[str, Any] = yaml.safe_load(said.stdout)["services"]["hutch"]
    return found


def test_the_compose_file_is_understood() -> None:
    """It builds our Containerfile, opens the port to this machine alone, and adds no capability."""
    found = service()
    assert Path(found["build"]["context"], found["build"]["dockerfile"]) == TREE / "deploy" / "Containerfile"
    assert found["ports"] == ["127.0.0.1:7300:7300"]
    assert not {"privileged", "cap_add", "network_mode", "pid"} & found.keys()


class Docker:
    """The docker command, at a daemon of the test's own."""

    def __init__(self, path: Path) -> None:
        self._command = ["docker", f"--host=unix://{path}"]

    def __call__(self, *arguments: str) -> str:
        # The classic builder: the other one is a plugin that not every machine has.
        environ = {**os.environ, "DOCKER_BUILDKIT": "0"}
        done = subprocess.run([*self._command, *arguments], env=environ, capture_output=True, text=True)
        assert done.returncode == 0, (arguments[0], done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout.strip()


def context(top: Path) -> Path:
    """What the build needs, with the wheels beside it: a builder has no index of its own."""
    for name in ("src", "deploy"):
        shutil.copytree(TREE / name, top / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(TREE / name, top)
    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = ["hatchling", *project["dependencies"]]
    wanted += [each for extra in ("server", "postgres", "kubernetes", "zstd") for each in extras[extra]]
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "-d", str(top / "wheels"), *wanted], check=True)
    return top


@contextmanager
def running(engine: Docker, image: str) -> Iterator[str]:
    """A container with what the compose file grants, and nothing else. The daemon has no bridge, so it shares the
    machine's network, on a port of its own."""
    found = service()
    granted = [f"--security-opt={option}" for option in found["security_opt"]]
    granted += [f"--volume={volume}" for volume in found["volumes"] if volume.startswith("/")]
    granted += [f"--cgroupns={found['cgroup']}"]
    answer = ["--network=host", "--env=HUTCH_SERVER_PORT=0", "--env=HUTCH_SERVER_HOST=127.0.0.1"]
    container = engine("run", "--detach", *granted, *answer, image)
    try:
        yield container
    finally:
        engine("rm", "--force", container)


@pytest.mark.proof
async def test_the_image_is_built_and_makes_boxes(tmp_path: Path) -> None:
    """The image is built from our Containerfile, and its server makes boxes whose limits the kernel holds."""
    top = Path(f"/var/tmp/hutch-image-{os.getpid()}")
    top.mkdir()
    try:
        with docker(top) as peer:
            engine = Docker(peer.path)
            engine(
                "build", "--network=host", "--build-arg", "BASE=hutch-bench", "--build-arg",
                "PIP_FLAGS=--no-index --find-links=/src", "-t", "hutch", "-f", str(TREE / "deploy" / "Containerfile"),
                str(context(tmp_path)),
            )  # fmt: skip
            with running(engine, "hutch") as container:
                there = "test -e /var/lib/hutch/server.json && echo yes || true"
                until(lambda: engine("exec", container, "sh", "-c", there) == "yes")
                answer = json.loads(engine("exec", container, "cat", "/var/lib/hutch/server.json"))
                key = engine("exec", container, "cat", "/var/lib/hutch/first-key")
                async with Hutch(answer["url"], key=key) as hutch, hutch.box() as box:
                    assert (await box.exec("echo $((6*7)); id -u")).stdout == "42\n1000\n"
                    grades = next(each for each in await hutch.providers() if each.provider == "native").grades
                size = engine("image", "inspect", "--format", "{{.Size}}", "hutch")
    except PeerMissing as missing:
        pytest.skip(str(missing))
    finally:
        shutil.rmtree(top, ignore_errors=True)
    assert {grades.cpus, grades.memory_mb, grades.pids} == {EnforcedBy.CGROUP}, grades
    write("server-image", image_mb=int(size) // 10**6, flags=service()["security_opt"])
