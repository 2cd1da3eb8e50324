"""The settings in the table `[providers.docker]` (or podman) of the configuration."""

import re
from collections.abc import Mapping
from enum import StrEnum
from ipaddress import IPv4Network

import msgspec

from hutch.errors import ConfigError


class LaneChoice(StrEnum):
    AUTO = "auto"
    """The fast lane is used where it is possible, else the engine's API."""
    FAST = "fast"
    API = "api"


class Pull(StrEnum):
    MISSING = "missing"
    ALWAYS = "always"
    NEVER = "never"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one engine."""

    host: str = ""
    """The engine's unix:///path or tcp://host:port. If empty, it is found as its own command line would."""
    certificates: str = ""
    """The directory with ca.pem, cert.pem and key.pem, for tcp with TLS."""
    lane: LaneChoice = LaneChoice.AUTO
    runtime: str = ""
    """The engine's name of an OCI runtime (runsc, crun, kata). If empty, its default is used."""
    image: str = ""
    """The image of boxes whose caller names none, such as "debian:12"."""
    pull: Pull = Pull.MISSING
    user: str = "1000:1000"
    """The uid:gid of the box's ordinary user, unless the image names one by number."""
    addresses: str = "10.231.0.0/16"
    """The range from which boxes get their networks, so that the engine's own few pools do not run out."""
    paths: dict[str, str] = msgspec.field(default_factory=dict)
    """For Hutch in a container: our prefix of each path, and the engine's prefix for the same directory."""
    cgroup_parent: str = ""
    """The control group below which containers are made. If empty, the engine chooses."""
    state_dir: str = ""
    """Hutch's state directory, which the configuration as a whole gives."""


def read(provider: str, table: Mapping[str, object]) -> Settings:
    for name in table:
        if name not in Settings.__struct_fields__:
            known = ", ".join(field for field in Settings.__struct_fields__ if field != "state_dir")
            raise ConfigError(f"provider {provider} has no setting {name!r}", remedy=f"it has: {known}")
    try:
        settings = msgspec.convert(dict(table), Settings)
        network = IPv4Network(settings.addresses)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"provider {provider}: {error}") from error
    if network.prefixlen > 24:
        raise ConfigError(
            f"provider {provider}: addresses {settings.addresses} is too small", remedy="give a /24 or larger"
        )
    if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", settings.user):
        raise ConfigError(
            f"provider {provider}: user {settings.user!r} is not uid:gid of an ordinary user",
            remedy='such as "1000:1000"',
        )
    return settings
