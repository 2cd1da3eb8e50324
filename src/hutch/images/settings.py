"""The `[images]` settings: when images are pulled, from where, and how large an untrusted archive may be."""

import msgspec

from hutch.errors import ConfigError
from hutch.model.record import Record

POLICIES = ("missing", "always", "never")


class Bounds(Record, frozen=True, kw_only=True):
    """Limits of one image. An archive that exceeds them is refused, and what was written of it is removed."""

    unpacked_mb: int = 32768
    """Size of all files of one layer together."""
    entries: int = 1_000_000
    """Number of files, directories and links of one layer."""
    depth: int = 128
    """Number of directories above a file."""
    ratio: int = 200
    """Bytes unpacked for each packed byte, checked once more than 256 MB have come out."""
    blob_mb: int = 16384
    """Size of one layer as it is transferred."""
    layers: int = 127
    """Number of layers; each is a mount in every box."""


class RegistrySettings(Record, frozen=True, kw_only=True):
    """`[images.registries."HOST[:PORT]"]`. A registry may redirect us to any host that has a table, wherever it is,
    and to other hosts only if they are public."""

    username: str = ""
    password: str = ""
    password_file: str = ""
    """File that is read at each pull; it keeps the password out of the configuration."""
    insecure: bool = False
    """Use plain HTTP; a registry on this machine may do so without this setting."""
    authority: str = ""
    """A PEM file with the authorities for its certificate; empty means those that the system trusts."""


class ImageSettings(Record, frozen=True, kw_only=True):
    """Every setting of images, with its default."""

    pull: str = ""
    """missing, always or never; empty means `missing` for `hutch run`, `shell` and `box create`, else `never`."""
    default_registry: str = "docker.io"
    """The registry of a name that gives none."""
    concurrency: int = 4
    """Number of layers that are fetched at the same time."""
    tries: int = 5
    """How often a request is tried before it fails."""
    timeout_sec: float = 30.0
    """How long a registry may take to respond."""
    bounds: Bounds = Bounds()
    registries: dict[str, RegistrySettings] = msgspec.field(default_factory=dict)

    def check(self, origin: str) -> None:
        """Check the values. Raises ConfigError, which names `origin`."""
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
