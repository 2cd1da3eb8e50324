"""The table `[providers.docker]` (or podman) of the configuration."""

import re
from collections.abc import Mapping
from enum import StrEnum
from ipaddress import IPv4Network

import msgspec

from hutch.errors import ConfigError


class LaneChoice(StrEnum):
    AUTO = "auto"
    """The fast lane where it can be had, else the engine's API."""
    FAST = "fast"
    API = "api"


class Pull(StrEnum):
    MISSING = "missing"
    ALWAYS = "always"
    NEVER = "never"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every setting with what it does."""

    host: str = ""
    """unix:///path or tcp://host:port; empty: as the engine's own command line would find it."""
    certificates: str = ""
    """A directory with ca.pem, cert.pem and key.pem, for tcp with TLS."""
    lane: LaneChoice = LaneChoice.AUTO
    runtime: str = ""
    """The engine's name of an OCI runtime (runsc, crun, kata); empty: its default."""
    image: str = ""
    """Of boxes whose caller names none, such as "debian:12"."""
    pull: Pull = Pull.MISSING
    user: str = "1000:1000"
    """uid:gid of the box's ordinary user, unless the image names one by number."""
    addresses: str = "10.231.0.0/16"
    """Where networks of boxes are cut from, so that the engine's own few pools do not run out."""
    paths: dict[str, str] = msgspec.field(default_factory=dict)
    """How paths differ, for Hutch in a container: our prefix of a path, and the engine's for the same place."""
    cgroup_parent: str = ""
    """The control group below which containers are made; empty: the engine's own choice."""
    state_dir: str = ""
    """Ours, given by the configuration as a whole."""


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
