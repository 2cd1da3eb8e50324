"""The peers of one run: those that can be measured, and why the others cannot."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from bench.peers import docker as docker_peer
from bench.peers import podman as podman_peer
from bench.peers.bwrap import bwrap, bwrap_version
from bench.peers.daemon import scratch_directory
from bench.peers.docker import runsc, runsc_version
from bench.peers.engine import Engine
from bench.peers.errors import PeerFailed, PeerMissing

NAMES = ("docker", "podman", "runsc", "bwrap")


@dataclass
class Peers:
    """`engines` by name in the order of `NAMES`; `missing` says why a name is not measured."""

    engines: dict[str, Engine] = field(default_factory=dict)
    bwrap: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def command_line(self, name: str) -> list[str]:
        """What a person would type to run `true` with that engine."""
        if name == "podman":
            return podman_peer.run_true(self.engines[name])
        return docker_peer.run_true(self.engines[name], "runsc" if name == "runsc" else "runc")


@contextlib.contextmanager
def no_peers() -> Iterator[Peers]:
    yield Peers(missing=dict.fromkeys(NAMES, "not asked for"))


@contextlib.contextmanager
def all_peers() -> Iterator[Peers]:
    """Start every peer that can be started, and stop them at the end."""
    peers = Peers()
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(scratch_directory())
        for name, open_engine in (("docker", docker_peer.docker), ("podman", podman_peer.podman)):
            own = directory / name
            own.mkdir()
            with _noting_failure(peers, name):
                peers.engines[name] = stack.enter_context(open_engine(own))
        with _noting_failure(peers, "runsc"):
            peers.engines["runsc"] = runsc(peers.engines.get("docker"))
        for name, engine in list(peers.engines.items()):
            with _noting_failure(peers, name):
                _check(engine)
                peers.versions[name] = runsc_version() if name == "runsc" else engine.version()
        with _noting_failure(peers, "bwrap"):
            peers.bwrap = bwrap()
            peers.versions["bwrap"] = bwrap_version()
        yield peers


@contextlib.contextmanager
def _noting_failure(peers: Peers, name: str) -> Iterator[None]:
    try:
        yield
    except (PeerMissing, PeerFailed) as error:
        peers.missing[name] = str(error)
        peers.engines.pop(name, None)


def _check(engine: Engine) -> None:
    """Run one container, so that an engine that cannot run here is named and not measured."""
    container, _ = engine.first_command()
    engine.remove(container)
