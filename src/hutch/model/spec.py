"""What a caller asks for (`Spec`) and what policy made of it (`EffectiveSpec`, with every adjustment)."""

from enum import StrEnum

import msgspec

from hutch.model.ids import BoxId
from hutch.model.limits import Limits, LimitsAsked
from hutch.model.record import Record


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


class AutoCheckpoint(StrEnum):
    OFF = "off"
    EXEC = "exec"
    """A checkpoint before each command, to which `Box.undo` goes back."""


class TtlAction(StrEnum):
    """What happens to a box whose time to live is over."""

    DESTROY = "destroy"
    PAUSE = "pause"
    """It is frozen as soon as nobody uses it, and then has no end until its ttl is set again."""
    HALT = "halt"
    """As `pause`, but its processes end first, so that only its files stay."""


class Isolation(StrEnum):
    """How strongly a provider isolates boxes, weakest first."""

    NONE = "none"
    NAMESPACES = "namespaces"
    GVISOR = "gvisor"
    VM = "vm"


VOLUME = "volume:"
"""The prefix of a source that names one of the owner's volumes instead of a host path."""


def volume_of(source: str) -> str | None:
    """Return the name of the volume that a source names; None if it names none."""
    return source.removeprefix(VOLUME) if source.startswith(VOLUME) else None


class Mount(Record, frozen=True, kw_only=True):
    """A host directory or file, or a volume ("volume:NAME"), shown inside the box.

    Policy checks a host path against the allow-list; a volume must be the owner's.
    """

    source: str
    target: str
    mode: MountMode = MountMode.RO


class Workspace(Record, frozen=True, kw_only=True):
    """`source` is "own", "volume:NAME" or a host path; it appears at /workspace."""

    source: str = "own"
    mode: MountMode = MountMode.RW


class CheckedMount(Record, frozen=True, kw_only=True):
    """A mount that policy has allowed: its real path without symlinks, and the inode that was found there."""

    real: str
    target: str
    mode: MountMode
    dev: int
    ino: int
    public: bool = False
    """Whether everybody may read it, so that no ids have to be mapped: the box sees the files as nobody's."""


class CheckedMounts(Record, frozen=True, kw_only=True):
    """Everything of the host that a box shows, as policy allowed it."""

    mounts: tuple[CheckedMount, ...] = ()
    """All mounts but those of mode none."""
    workspace: CheckedMount | None = None
    """None for the box's own workspace, or for none at all."""
    image: CheckedMount | None = None
    """The directory or archive of a `dir:` or `tar:` image."""


class Spec(Record, frozen=True, kw_only=True):
    """What a caller asks for; for None the profile decides, then the provider."""

    profile: str | None = None
    provider: str | None = None
    image: str | None = None
    """host | dir:PATH | tar:PATH | oci:REF"""
    workspace: Workspace | None = None
    workdir: str | None = None
    user: str | None = None
    """Default user of commands: "user" (an ordinary one), "root" (of the box) or a number."""
    mounts: tuple[Mount, ...] = ()
    env: dict[str, str] = msgspec.field(default_factory=dict)
    secrets: dict[str, str] = msgspec.field(default_factory=dict)
    """Like env, but never shown in a record, a log, an error or a receipt."""
    network: NetworkMode | None = None
    allow_private: tuple[str, ...] = ()
    """Private ranges (CIDR) that network `on` may reach too."""
    limits: LimitsAsked = msgspec.field(default_factory=LimitsAsked)
    read_only_root: bool | None = None
    retention: Retention | None = None
    idle_timeout_sec: float | None = None
    ttl_sec: float | None = None
    ttl_action: TtlAction | None = None
    """What happens to it after `ttl_sec`: `destroy` unless it says otherwise."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    ports: tuple[int, ...] = ()
    """TCP ports on which its programs will listen: `Box.ports(wait=…)` and visitors of previews wait for them."""
    name: str | None = None
    skills: str | None = None
    """Which skills it shows: "all" of its owner, "none", or the name of a group."""
    auto_checkpoint: AutoCheckpoint | None = None
    """Whether each command is a step that can be undone."""


class Adjustment(Record, frozen=True, kw_only=True):
    """One thing policy changed: `timeout_sec 600 → 120: maximum of profile default`."""

    field: str
    asked: str
    given: str
    reason: str

    def __str__(self) -> str:
        return f"{_FIELD_WORDS.get(self.field, self.field)} {self.asked} → {self.given}: {self.reason}"


_FIELD_WORDS = {"read_only_root": "read-only system", "min_isolation": "isolation at least"}
"""What people call a field whose name is none of their words."""


class EffectiveSpec(Record, frozen=True, kw_only=True):
    """A spec with all values decided, which the provider builds."""

    profile: str
    provider: str
    image: str
    workspace: Workspace
    workdir: str
    user: str
    mounts: tuple[Mount, ...]
    env: dict[str, str]
    secrets: dict[str, str]
    network: NetworkMode
    allow_private: tuple[str, ...]
    limits: Limits
    read_only_root: bool
    retention: Retention
    idle_timeout_sec: float
    """0 if it never ends by idleness."""
    ttl_sec: float
    """0 if it never ends by age."""
    labels: dict[str, str]
    ports: tuple[int, ...]
    name: str
    min_isolation: Isolation = Isolation.NAMESPACES
    skills: str = "all"
    auto_checkpoint: AutoCheckpoint = AutoCheckpoint.OFF
    ttl_action: TtlAction = TtlAction.DESTROY
    adjustments: tuple[Adjustment, ...] = ()

    def shown(self) -> "EffectiveSpec":
        """Return the spec for records, logs and people: secrets have names only."""
        return self.but(secrets=dict.fromkeys(self.secrets, "***")) if self.secrets else self


class Order(Record, frozen=True, kw_only=True):
    """What a provider has to make: the box's id, its keeper and its effective spec."""

    box_id: BoxId
    keeper: str
    spec: EffectiveSpec
    places: CheckedMounts = msgspec.field(default_factory=CheckedMounts)
    """Mounts, workspace and image directory as policy allowed them; providers use these, not the names in the spec."""
    orphan_grace_sec: float = 10.0
    """Seconds that the box lives without any keeper."""
    owner: str = ""
    """Whose box it is, for people who look at the engine itself."""
