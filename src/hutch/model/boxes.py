"""Boxes as callers see them: states and the moves between them, infos, leases, events, ports; and volumes."""

from enum import StrEnum

from hutch.model.ids import BoxId
from hutch.model.record import Record
from hutch.model.results import JobInfo
from hutch.model.spec import EffectiveSpec


class State(StrEnum):
    CREATING = "creating"
    RESTORING = "restoring"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    STOPPED = "stopped"
    ERROR = "error"
    UNKNOWN = "unknown"


MOVES: dict[State, frozenset[State]] = {
    State.CREATING: frozenset({State.RUNNING, State.ERROR, State.STOPPING}),
    State.RESTORING: frozenset({State.RUNNING, State.ERROR, State.UNKNOWN, State.STOPPED, State.STOPPING}),
    State.RUNNING: frozenset({State.PAUSED, State.UNKNOWN, State.ERROR, State.RESTORING, State.STOPPING}),
    State.PAUSED: frozenset({State.RUNNING, State.UNKNOWN, State.ERROR, State.STOPPING}),
    State.STOPPING: frozenset({State.STOPPED, State.ERROR}),
    State.STOPPED: frozenset({State.RESTORING, State.STOPPING}),
    State.ERROR: frozenset({State.STOPPING}),
    State.UNKNOWN: frozenset({State.RESTORING, State.STOPPING}),
}
"""Maps a state to those that may follow. From `stopping` a box may also be gone."""


def may_move(old: State, new: State) -> bool:
    return new in MOVES[old]


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


class PortInfo(Record, frozen=True, kw_only=True):
    """One TCP port on which a program in the box listens."""

    port: int
    address: str = ""
    """The address that the program bound: 127.0.0.1, 0.0.0.0, ::, ..."""
    process: str = ""
    """The name of the program; empty if the box's user may not see whose it is."""
    pid: int = 0
    """The process id within the box; 0 if unknown."""


class Preview(Record, frozen=True, kw_only=True):
    """Access to one port of a box by HTTP and WebSocket, at an origin of its own."""

    id: str
    box_id: BoxId
    port: int
    """0 for every port of the box."""
    url: str
    """The address for a browser: its first visit turns the token into a cookie of that origin alone. Empty if the
    server has no host names for previews."""
    path_url: str
    """The same on the server's own host name, for places without wildcard names. Pages get an opaque origin there,
    without cookies and storage."""
    token: str
    """The token for programs, in the header `Hutch-Preview`. Empty if the preview is public."""
    public: bool
    created_at: float
    expires_at: float
    """Unix time; 0 if it lasts as long as the box."""
