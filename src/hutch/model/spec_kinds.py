"""The closed sets a spec chooses from."""

from enum import StrEnum


class NetworkMode(StrEnum):
    OFF = "off"
    ON = "on"
    ALLOWLIST = "allowlist"


class MountMode(StrEnum):
    RO = "ro"
    RW = "rw"
    NONE = "none"


class Retention(StrEnum):
    TEMPORARY = "temporary"
    PERSISTENT = "persistent"


class Isolation(StrEnum):
    """How strong a provider's wall is, weakest first."""

    NONE = "none"
    NAMESPACES = "namespaces"
    GVISOR = "gvisor"
    VM = "vm"
