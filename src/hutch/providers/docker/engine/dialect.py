"""The differences between Docker and Podman behind the same API."""

from typing import Any, NamedTuple


class Dialect(NamedTuple):
    """One product's variant of the API."""

    host_config: dict[str, Any]
    """The further fields that a container needs."""
    ulimits: dict[str, int]
    """The limits that the product would raise to the machine's maxima, which a machine may forbid."""
    updates: bool
    """Whether its API changes the limits of a live container."""

    inodes: bool
    """Whether it lets a tmpfs be limited in its number of files."""
    owner: str
    """The option that makes the container's user the owner of a tmpfs."""
    gives: bool
    """Whether a new volume belongs to root until it is handed to the container's user."""
    bridge_options: tuple[str, str]
    """Its option names for a network's interface and for whether containers may talk to each other."""

    def network_options(self, bridge: str) -> dict[str, str]:
        name, neighbours = self.bridge_options
        return {name: bridge, **({neighbours: "false"} if neighbours else {})}


DOCKER = Dialect(
    host_config={"LogConfig": {"Type": "json-file", "Config": {"max-size": "64k"}}},
    ulimits={},
    updates=True,
    inodes=True,
    gives=True,
    owner="uid={uid},gid={gid}",
    bridge_options=("com.docker.network.bridge.name", "com.docker.network.bridge.enable_icc"),
)
PODMAN = Dialect(
    host_config={},
    ulimits={"nproc": 4096},
    updates=False,
    inodes=False,
    gives=False,
    owner="U",
    bridge_options=("com.docker.network.bridge.name", ""),
)
