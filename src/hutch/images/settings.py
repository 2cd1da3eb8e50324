"""`[images]`: when images are pulled, from whom, and how large a stranger's archive may be."""

import msgspec

from hutch.errors import ConfigError
from hutch.model.record import Record

POLICIES = ("missing", "always", "never")


class Bounds(Record, frozen=True, kw_only=True):
    """What one image may cost. An archive that needs more is refused, and what it had written is removed."""

    unpacked_mb: int = 32768
    """All files of one layer together."""
    entries: int = 1_000_000
    """Files, directories and links of one layer."""
    depth: int = 128
    """Directories above a file."""
    ratio: int = 200
    """Bytes unpacked for each byte packed, once more than 256 MB have come out."""
    blob_mb: int = 16384
    """One layer as it is sent."""
    layers: int = 127
    """Each is a mount of its own in every box."""


class RegistrySettings(Record, frozen=True, kw_only=True):
    """`[images.registries."HOST[:PORT]"]`. Registries may send us on to a host that has a table, wherever it is; to all
    others only if they are public."""

    username: str = ""
    password: str = ""
    password_file: str = ""
    """Read at each pull; keeps the password out of the configuration."""
    insecure: bool = False
    """Plain HTTP, which a registry on this machine may speak without being asked."""
    authority: str = ""
    """A PEM file of those who vouch for its certificate; empty: whom the system trusts."""


class ImageSettings(Record, frozen=True, kw_only=True):
    """Every setting of images, with its default."""

    pull: str = ""
    """missing, always or never; empty: `missing` for `hutch run`, `shell` and `box create`, `never` for all else."""
    default_registry: str = "docker.io"
    """The registry of a name that gives none."""
    concurrency: int = 4
    """Layers under way at once."""
    tries: int = 5
    """How often one request is made before it counts as failed."""
    timeout_sec: float = 30.0
    """How long a registry may be silent."""
    bounds: Bounds = Bounds()
    registries: dict[str, RegistrySettings] = msgspec.field(default_factory=dict)

    def check(self, origin: str) -> None:
        """Raises ConfigError, which names `origin`."""
        if self.pull and self.pull not in POLICIES:
            raise _wrong(origin, "pull", f"{self.pull!r} is none of {', '.join(POLICIES)}")
        if not 1 <= self.concurrency <= 32:
            raise _wrong(origin, "concurrency", "is not a number from 1 to 32")
        if not 1 <= self.tries <= 20:
            raise _wrong(origin, "tries", "is not a number from 1 to 20")
        if not 0 < self.timeout_sec <= 3600:
            raise _wrong(origin, "timeout_sec", "is not a number of seconds from above 0 to 3600")
        for name, value in self.bounds.to_plain().items():
            if value < 1:
                raise _wrong(origin, f"bounds.{name}", "is not above 0")
        if self.bounds.layers > 200:
            raise _wrong(origin, "bounds.layers", "is over 200, more than a box can be given")


def _wrong(origin: str, field: str, why: str) -> ConfigError:
    return ConfigError(f"{origin}: images.{field} {why}", details={"field": f"images.{field}"})
