"""What the keeper remembers of a box: the one durable record, and its tombstone."""

from typing import Self

import msgspec

from hutch.errors import Invalid, Unavailable
from hutch.model.boxes import Lease
from hutch.model.compatibility import decode_record
from hutch.model.ids import BoxId
from hutch.model.record import Record
from hutch.model.spec import EffectiveSpec
from hutch.model.state import State
from hutch.providers.base import InstanceRecord

SCHEMA = 2
"""2: the environment may be sealed."""
LOCAL_OWNER = "local"
POOL_OWNER = ""
SCOPE_KEY = "scope:"
"""How the key of a conversation's box begins; the keys that callers choose for their creations do not."""


class BoxRecord(Record, frozen=True, kw_only=True):
    """One box, as the store holds it. Written through `States` only; `version` is what compare-and-set compares."""

    schema: int = SCHEMA
    id: BoxId
    owner: str = LOCAL_OWNER
    keeper: str
    place: str = ""
    """Where it can be reached from: a keeper's place (`Liveness.place`), or "" for every one that sees this record."""
    state: State
    version: int = 1
    reason: str = ""
    spec: EffectiveSpec
    """As people may see it: secrets keep their names only."""
    instance: InstanceRecord
    created_at: float
    used_at: float
    epoch: int = 1
    lease: Lease | None = None
    left_lease: Lease | None = None
    """The lease that ended with its keeper's process. Other processes may have used the box under it: they go on with
    it (`leases.resumable_lease`), unless somebody else got the box first."""
    doomed: bool = False
    """Somebody has begun to destroy it. A persistent box that is stopping or broken without this keeps its files."""
    created_hooks_done: bool = msgspec.field(default=False, name="greeted")
    """The application's `created` hooks have succeeded for it; they run again until they have (P10)."""
    idempotency_key: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    skills_mounted: bool = False
    """Its skills are a mount: what changes there is in the box by itself. Else they are copied in."""
    grace_sec: float = 0.0
    """Its dead-man's clock: how long it lives without any keeper."""
    left_at: float = 0.0
    """When a keeper last went and left it to itself on purpose (`Teardown.leave`); 0: never."""
    sealed_env: str = ""
    """The spec's environment as a store holds it (`keeper.seal`); here only if it could not be opened."""

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """A record of a newer release is refused: what it says beyond our understanding would be lost at the next
        write, and may be what keeps the box safe."""
        try:
            record = super().from_json(data)
        except Invalid:
            _check_schema(decode_record(data, RecordHead))
            raise
        _check_schema(record)
        return record

    @property
    def is_scoped(self) -> bool:
        """Whether `box_for` finds it by the values of a scope."""
        return self.idempotency_key.startswith(SCOPE_KEY)

    def is_waiting(self, now: float) -> bool:
        """Left to itself, and its clock has not run out: it waits for whoever asks for it. A box that stands still
        has a clock that stands still."""
        if not self.left_at:
            return False
        return self.state in (State.PAUSED, State.STOPPED) or now < self.left_at + self.grace_sec


class RecordHead(Record, frozen=True, kw_only=True):
    """What is sure of a box's record, whichever release wrote it."""

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
    """What stays of a destroyed box for a week: enough to say "gone, then and because"."""

    id: BoxId
    owner: str
    name: str = ""
    reason: str
    at: float
