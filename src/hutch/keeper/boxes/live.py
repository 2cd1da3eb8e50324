"""A box in this keeper's memory: its record, its instance, and who is using it right now."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from hutch.errors import BoxBroken, Conflict, Detail, Gone, LeaseLost
from hutch.keeper.access.leases import holds
from hutch.keeper.boxes.records import BoxRecord, Tombstone
from hutch.keeper.boxes.states import describe_state
from hutch.model.boxes import EventCause, State
from hutch.providers.base import Instance

if TYPE_CHECKING:
    from hutch.kernels.table import KernelTable


class FoundBox(NamedTuple):
    """The box of a key, and whether it existed before."""

    live: "Live"
    existed: bool


class Live:
    """One box that this keeper holds. An operation pins it, so that no clock ends it meanwhile."""

    __slots__ = ("connections", "created_hooks_lock", "end_cause", "handles", "instance", "kernels", "last_checked",
                 "last_used", "pins", "record", "secrets", "state_lock", "tombstone", "trouble")  # fmt: skip

    def __init__(self, record: BoxRecord, secrets: tuple[str, ...] = ()) -> None:
        self.record = record
        self.secrets = secrets
        """Redacted from every log line while the box lives; the record has only their names."""
        self.instance: Instance | None = None
        self.kernels: KernelTable | None = None
        """Its code interpreters; None until somebody uses one."""
        self.tombstone: Tombstone | None = None
        """Set when the box is gone, so that open handles can say when and why."""
        self.end_cause = EventCause.OTHER
        """Why the box was last asked to be destroyed; a later attempt that finishes the work reports it again."""
        self.pins = 0
        self.connections = 0
        """Open connections to its ports. They keep it from idling, but unlike pins they do not keep it from a pause."""
        self.handles: dict[str, int] = {}
        """Open handles in this process by session: while the holder has any, its lease is renewed."""
        self.last_used = time.monotonic()
        self.last_checked = 0.0
        """When a health check last passed (monotonic)."""
        self.trouble = ""
        """The trouble (`Instance.trouble`) that an event has already reported."""
        self.created_hooks_lock = asyncio.Lock()
        """Held while the application's `created` hooks run, so that two callers do not run them at once."""
        self.state_lock = asyncio.Lock()
        """Protects `record` while a transition is being written, so that two tasks of one keeper take turns
        instead of losing races against each other. Other keepers are kept out by compare-and-set."""

    def pin(self, epoch: int) -> None:
        """Begin an operation under `epoch`; every pin needs its `unpin`."""
        self.check_not_gone()
        record = self.record
        if record.epoch != epoch:
            raise lease_lost(record, {"epoch": record.epoch, "yours": epoch})
        if record.state is not State.RUNNING and record.state is not State.PAUSED:
            kind = BoxBroken if record.state is State.ERROR else Conflict
            raise kind(describe_state(record), details={"state": str(record.state)})
        self.pins += 1

    def unpin(self) -> None:
        self.pins -= 1
        self.last_used = time.monotonic()

    def check_not_gone(self) -> None:
        """Raise Gone if the box has been destroyed."""
        if self.tombstone is not None:
            raise gone(self.tombstone)

    def add_handle(self, session: str) -> None:
        self.handles[session] = self.handles.get(session, 0) + 1

    def remove_handle(self, session: str) -> None:
        self.handles[session] -= 1
        if not self.handles[session]:
            del self.handles[session]

    @contextmanager
    def pending_handle(self, session: str) -> Iterator[None]:
        """Count a handle that is about to be opened, so that no decision made meanwhile overlooks it."""
        self.add_handle(session)
        try:
            yield
        finally:
            self.remove_handle(session)

    @property
    def held(self) -> bool:
        """Whether somebody in this process still has a handle under the present lease."""
        lease = self.record.lease
        return lease is not None and lease.holder in self.handles

    def in_use(self, now: float) -> bool:
        """Whether somebody works with the box or holds it, so that its idle clock stands still."""
        lease = self.record.lease
        return bool(self.pins) or bool(self.connections) or (lease is not None and lease.live(now) and self.held)

    @property
    def running(self) -> Instance:
        """The instance; Conflict if the box has none now."""
        if self.instance is None:
            raise Conflict(describe_state(self.record), details={"state": str(self.record.state)})
        return self.instance

    def held_by_another(self, session: str) -> bool:
        lease = self.record.lease
        return lease is not None and not holds(lease, session) and lease.live(time.time())


def lease_lost(record: BoxRecord, details: Mapping[str, Detail] | None = None) -> LeaseLost:
    return LeaseLost(
        f"box {record.id} was taken over by another session",
        remedy="attach to it again, or create a box of your own",
        details=details,
    )


def gone(tombstone: Tombstone) -> Gone:
    """Return the error that says when and why a box was destroyed."""
    name = f" ({tombstone.name})" if tombstone.name else ""
    return Gone(
        f"box {tombstone.id}{name} has been destroyed: {tombstone.reason}",
        details={"at": tombstone.at, "reason": tombstone.reason},
        remedy="create a new one",
    )
