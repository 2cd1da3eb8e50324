"""What anybody may see of a box without holding it: its info, its lease, what happened to it; volumes likewise."""

from enum import StrEnum

from hutch.model.ids import BoxId
from hutch.model.record import Record
from hutch.model.spec import EffectiveSpec
from hutch.model.state import State

RENEWED_AFTER = 0.05
"""The lease of a live handle is renewed when that moves its expiry by this share of its length."""


class Lease(Record, frozen=True, kw_only=True):
    """Which session may change a box now. It ends for good when it expires; a takeover bumps the record's epoch."""

    holder: str
    acquired_at: float
    expires_at: float
    """Unix time; 0: until it is released."""
    seconds: float = 0.0
    """How long it lasts from the last use on; 0: until it is released."""
    key: str = ""
    """The id of the key by which the session got it; empty: by none."""

    def live(self, now: float) -> bool:
        return self.expires_at == 0 or self.expires_at > now

    def expires_in_sec(self, now: float) -> float | None:
        """None: it does not expire."""
        return max(0.0, self.expires_at - now) if self.expires_at else None

    @property
    def auto_renew_sec(self) -> float | None:
        """How often it is renewed while a handle of its holder lives; None: it does not expire."""
        return RENEWED_AFTER * self.seconds if self.expires_at and self.seconds else None


class BoxInfo(Record, frozen=True, kw_only=True):
    """One box (B13)."""

    id: BoxId
    name: str
    owner: str
    state: State
    reason: str
    """Why it is in this state, or what is wrong with it all the same."""
    provider: str
    spec: EffectiveSpec
    """Secrets keep their names only; `adjustments` tells what policy changed."""
    created_at: float
    used_at: float
    grace_sec: float
    """How long it lives without a keeper."""
    remaining_sec: float | None
    """Until the first of its clocks ends it (idle, ttl, or life without a keeper), or lets it sleep, if nobody uses it
    from now on and no job runs; None: nothing ends it by time."""
    epoch: int
    lease: Lease | None
    elsewhere: bool = False
    """Another live process keeps it: it can be seen from here, not used."""


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
    """Something that happened to a box; `seq` grows by one and never repeats within a store."""

    seq: int
    at: float
    box_id: BoxId
    owner: str
    kind: str
    """created | state | gone | warning | lease | claimed | changed | adopted | skill | asked | answered"""
    old: str = ""
    new: str = ""
    reason: str = ""
    cause: str = ""
    """An `EventCause` where the event has one; events of earlier releases have none."""


class Moved(Record, frozen=True, kw_only=True):
    """What came of an export or an import."""

    box_id: str
    parts: tuple[str, ...]
    """workspace, home, system: what was carried."""
    notes: tuple[str, ...] = ()
    """What was left behind, and why."""
    size: int = 0
    """Of the file, in bytes."""


class VolumeInfo(Record, frozen=True, kw_only=True):
    """A volume."""

    name: str
    owner: str
    created_at: float
    path: str = ""
    """On the host; told to whoever is on that host, not over HTTP."""
