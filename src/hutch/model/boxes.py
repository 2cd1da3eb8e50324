"""What is shown of boxes and volumes: infos, leases, events."""

from enum import StrEnum

from hutch.model.ids import BoxId
from hutch.model.record import Record
from hutch.model.results import JobInfo
from hutch.model.spec import EffectiveSpec
from hutch.model.state import State

RENEWED_AFTER = 0.05
"""The lease of a live handle is renewed when this share of its length has passed."""


class Lease(Record, frozen=True, kw_only=True):
    """The session that may change a box now. An expired lease is over for good; a takeover raises the box's epoch."""

    holder: str
    acquired_at: float
    expires_at: float
    """Unix time; 0 if it lasts until it is released."""
    seconds: float = 0.0
    """How long it lasts after the last use; 0 until it is released."""
    key: str = ""
    """The id of the key with which the session acquired it, if any."""

    def live(self, now: float) -> bool:
        return self.expires_at == 0 or self.expires_at > now

    def expires_in_sec(self, now: float) -> float | None:
        """Return the seconds until it expires; None if it does not."""
        return max(0.0, self.expires_at - now) if self.expires_at else None

    @property
    def auto_renew_sec(self) -> float | None:
        """Seconds between renewals while a handle of its holder lives; None if it does not expire."""
        return RENEWED_AFTER * self.seconds if self.expires_at and self.seconds else None


class BoxInfo(Record, frozen=True, kw_only=True):
    """Everything that is shown of one box."""

    id: BoxId
    name: str
    owner: str
    state: State
    reason: str
    """Why it is in this state, or what is wrong with it nevertheless."""
    provider: str
    spec: EffectiveSpec
    """Secrets have names only; `adjustments` lists what policy changed."""
    created_at: float
    used_at: float
    grace_sec: float
    """Seconds that it lives without a keeper."""
    remaining_sec: float | None
    """Seconds until a clock (idle, ttl, life without a keeper) ends or pauses it, if nobody uses it and no job runs;
    None if no clock does."""
    epoch: int
    lease: Lease | None
    elsewhere: bool = False
    """Whether another live process keeps it, so that it can be seen but not used from here."""
    created_hooks_done: bool = False
    """Whether the `created` hooks of an application have succeeded."""
    jobs: tuple[JobInfo, ...] | None = None
    """Its jobs, if it was asked about alone and could answer; lists do not ask."""


class EventCause(StrEnum):
    """Why a box was destroyed or marked as failed, as a code; the reason of the event says it in words."""

    CALL = "call"
    IDLE = "idle"
    TTL = "ttl"
    CREATION_FAILED = "creation_failed"
    REPLACED = "replaced"
    SHUTDOWN = "shutdown"
    LOST = "lost"
    HEALTH_CHECK = "health_check"
    OTHER = "other"


class Event(Record, frozen=True, kw_only=True):
    """Something that happened to a box; `seq` grows by one and is unique within a store."""

    seq: int
    at: float
    box_id: BoxId
    owner: str
    kind: str
    """created | state | gone | warning | lease | claimed | changed | adopted | skill | asked | answered | port |
    kernel"""
    old: str = ""
    new: str = ""
    reason: str = ""
    cause: str = ""
    """An `EventCause` where the event has one; events of earlier releases have none."""


class Moved(Record, frozen=True, kw_only=True):
    """The result of an export or an import."""

    box_id: str
    parts: tuple[str, ...]
    """The parts that were moved: workspace, home, system."""
    notes: tuple[str, ...] = ()
    """What was not moved, and why."""
    size: int = 0
    """Size of the file in bytes."""


class VolumeInfo(Record, frozen=True, kw_only=True):
    """A volume."""

    name: str
    owner: str
    created_at: float
    path: str = ""
    """Path on the host; shown only on that host, never over HTTP."""
