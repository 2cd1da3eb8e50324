"""The durable record of a box, and its tombstone."""

from typing import Self

import msgspec

from hutch.errors import Invalid, Unavailable
from hutch.model.boxes import Lease, State
from hutch.model.compatibility import decode_record
from hutch.model.ids import BoxId
from hutch.model.layers import Checkpoint
from hutch.model.record import Record
from hutch.model.spec import EffectiveSpec
from hutch.providers.base import InstanceRecord

SCHEMA = 3
"""Since schema 2, the environment may be sealed; since 3, a box has checkpoints and forks."""
LOCAL_OWNER = "local"
POOL_OWNER = ""
"""Pool boxes belong to nobody until they are claimed."""
SCOPE_KEY = "scope:"
"""Prefix of the keys of conversations' boxes; keys that callers choose for their creations do not have it."""


class StoredCheckpoint(Record, frozen=True, kw_only=True):
    """A checkpoint, with the engine's own name of its state."""

    checkpoint: Checkpoint
    state: str


class ForkRecord(Record, frozen=True, kw_only=True):
    """A box that began with a state of this one. While it lives, the state must stay."""

    box_id: BoxId
    state: str


class ForkOrigin(Record, frozen=True, kw_only=True):
    """Where a fork comes from."""

    box_id: BoxId
    state: str
    """The state it began with, by its name in the other box."""
    start: str
    """The same state by its name in the fork."""


class BoxRecord(Record, frozen=True, kw_only=True):
    """One box, as the store holds it. Written through `States` only; `version` is what compare-and-set compares."""

    schema: int = SCHEMA
    id: BoxId
    owner: str = LOCAL_OWNER
    keeper: str
    place: str = ""
    """The place (`Liveness.place`) whose keepers can reach the box; "" if every keeper of the store can."""
    state: State
    version: int = 1
    reason: str = ""
    spec: EffectiveSpec
    """The spec as people may see it, with the names of secrets only."""
    instance: InstanceRecord
    created_at: float
    used_at: float
    epoch: int = 1
    lease: Lease | None = None
    left_lease: Lease | None = None
    """The lease that ended with its keeper's process. Other processes that used the box under it may continue it
    (`leases.resumable_lease`), unless somebody else got the box first."""
    doomed: bool = False
    """Somebody has begun to destroy the box. Otherwise a persistent box that is stopping or broken keeps its files."""
    created_hooks_done: bool = msgspec.field(default=False, name="greeted")
    """The application's `created` hooks have succeeded; they are repeated until they have."""
    idempotency_key: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    skills_mounted: bool = False
    """The skills are mounted, so that the box sees changes by itself; otherwise they are copied in."""
    grace_sec: float = 0.0
    """Seconds that the box lives without any keeper (its dead-man's clock)."""
    left_at: float = 0.0
    """When a keeper last left the box to itself on purpose (`Teardown.leave`); 0 means never."""
    checkpoints: tuple[StoredCheckpoint, ...] = ()
    """Oldest first."""
    forks: tuple[ForkRecord, ...] = ()
    origin: ForkOrigin | None = None
    sealed_env: str = ""
    """The sealed environment of the spec as the store holds it; set here only if it could not be unsealed."""

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Decode a record. One of a newer release is refused: fields unknown here would be lost at the next write,
        and may be what keeps the box safe."""
        try:
            record = super().from_json(data)
        except Invalid:
            _check_schema(decode_record(data, RecordHead))
            raise
        _check_schema(record)
        return record

    @property
    def is_scoped(self) -> bool:
        """Whether `box_for` finds the box by the values of a scope."""
        return self.idempotency_key.startswith(SCOPE_KEY)

    def is_waiting(self, now: float) -> bool:
        """Whether the box was left to itself, its clock has not run out, and it waits for whoever asks for it.

        The clock of a paused or stopped box stands still.
        """
        if not self.left_at:
            return False
        return self.state in (State.PAUSED, State.STOPPED) or now < self.left_at + self.grace_sec


class RecordHead(Record, frozen=True, kw_only=True):
    """The fields that every release writes into a record."""

    schema: int
    id: str


def _check_schema(about: BoxRecord | RecordHead) -> None:
    if about.schema > SCHEMA:
        raise Unavailable(
            f"the record of box {about.id} has schema {about.schema}, this release knows {SCHEMA}",
            retryable=False,
            details={"box": about.id},
            remedy="use the release that wrote it, or destroy the box with that one",
        )


class Tombstone(Record, frozen=True, kw_only=True):
    """What is kept of a destroyed box for a week: enough to say when and why it went."""

    id: BoxId
    owner: str
    name: str = ""
    reason: str
    at: float
