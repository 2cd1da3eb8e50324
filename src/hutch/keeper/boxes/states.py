"""The one place that writes box records: each change is a compare-and-set with a reason and an event."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from hutch.errors import Conflict
from hutch.keeper.boxes.records import BoxRecord, Tombstone
from hutch.keeper.locks import run_uncancelled
from hutch.keeper.store.store import Store
from hutch.logs import redact
from hutch.model.boxes import Event, EventCause, State, may_move

Listener = Callable[[Event], None]
Witness = Callable[[BoxRecord | None, BoxRecord, Event | None], Awaitable[None] | None]
"""Receives the old record (None if it is new), the new one, and the event. States waits for what it returns."""
Pending = list[Awaitable[None]]
"""What the witnesses of a written change still have to finish."""

T = TypeVar("T")

_DESCRIPTIONS = {
    State.CREATING: "is still being created",
    State.RESTORING: "is being restored",
    State.PAUSED: "is paused",
    State.STOPPING: "is being destroyed",
    State.STOPPED: "is stopped",
    State.ERROR: "encountered an error",
    State.UNKNOWN: "cannot be reached now",
    State.RUNNING: "is running",
}


def describe_state(record: BoxRecord) -> str:
    """Describe the state as an error message says it: "box x is being destroyed"."""
    reason = f": {record.reason}" if record.reason and record.state in (State.ERROR, State.UNKNOWN) else ""
    return f"box {record.id} {_DESCRIPTIONS[record.state]}{reason}"


class Holder(Protocol):
    """Whoever keeps a record in memory."""

    record: BoxRecord


class States:
    """Moves boxes from state to state. Whoever loses a race gets Conflict and must look again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.listeners: list[Listener] = []
        self.witnesses: list[Witness] = []
        """They see every change that was written, including changes without an event."""

    async def open(self, record: BoxRecord, opened: Callable[[], None] | None = None) -> BoxRecord:
        """Write the intent to create a box; from then on it can be found and destroyed, whatever happens.

        `opened` is called when that is written, even if the caller is cancelled meanwhile.
        """
        event = _event(record, "created", new=record.state, reason=record.reason)

        def written(_: None) -> Pending:
            if opened is not None:
                opened()
            return self._notify(None, record, event)

        await _finish(self._store.insert(record, event), written)
        return record

    async def change(
        self,
        record: BoxRecord,
        to: State,
        *,
        reason: str,
        cause: EventCause | None = None,
        into: Holder | None = None,
        **fields: Any,
    ) -> BoxRecord:
        """Move a box to another state. `into` gets the new record even if the caller is cancelled meanwhile."""
        if not may_move(record.state, to):
            raise Conflict(f"{describe_state(record)}, it cannot become {to}", details={"state": str(record.state)})
        reason = redact(reason)  # A reason often quotes an error, which may contain a secret.
        moved = record.but(state=to, reason=reason, version=record.version + 1, **fields)
        event = _event(moved, "state", old=record.state, new=to, reason=reason, cause=cause or "")
        return await self._write(record, moved, event, into)

    async def update(
        self, record: BoxRecord, *, kind: str = "", reason: str = "", into: Holder | None = None, **fields: Any
    ) -> BoxRecord:
        """Change a record within its state (lease, instance facts). It makes an event only if `kind` names one."""
        updated = record.but(version=record.version + 1, **fields)
        event = _event(updated, kind, reason=redact(reason)) if kind else None
        return await self._write(record, updated, event, into)

    async def forget(self, record: BoxRecord, reason: str, cause: EventCause) -> Tombstone:
        """Replace the record of a box that its engine has removed by a tombstone."""
        if record.state is not State.STOPPING:
            raise Conflict(f"{describe_state(record)}: only a box that is being destroyed can be forgotten")
        reason = redact(reason)
        event = _event(record, "gone", old=record.state, reason=reason, cause=cause)
        tombstone = Tombstone(id=record.id, owner=record.owner, name=record.spec.name, reason=reason, at=event.at)
        if not await self._store.remove(tombstone, record.version, event):
            raise _lost_race(record)
        await _await_all(self._notify(record, record, event))
        return tombstone

    async def reassert(self, holder: Holder, keeper: str) -> bool:
        """Whether the box still belongs to `keeper`. The holder gets the record that the store has.

        Whoever writes first has the box, so the record is written once to find out.
        """
        stored = await self._store.get(holder.record.id)
        while stored is not None and stored.keeper == keeper:
            try:
                await self.update(stored, into=holder)
            except Conflict:
                stored = await self._store.get(holder.record.id)
            else:
                return True
        holder.record = stored or holder.record.but(state=State.STOPPING, epoch=holder.record.epoch + 1)
        return False

    async def announce(self, event: Event) -> None:
        """Store and publish an event that changed no record."""
        await self._store.add_event(event)
        for listener in self.listeners:
            listener(event)

    async def _write(self, old: BoxRecord, new: BoxRecord, event: Event | None, into: Holder | None) -> BoxRecord:
        def written(changed: bool) -> Pending:
            if not changed:
                raise _lost_race(old)
            if into is not None:
                into.record = new
            return self._notify(old, new, event)

        await _finish(self._store.replace(new, old.version, event), written)
        return new

    def _notify(self, old: BoxRecord | None, new: BoxRecord, event: Event | None) -> Pending:
        pending = [work for witness in self.witnesses if (work := witness(old, new, event)) is not None]
        if event is not None:
            for listener in self.listeners:
                listener(event)
        return pending


async def _finish(writing: Awaitable[T], written: Callable[[T], Pending]) -> None:
    """Finish a write and what follows from it, even if the caller is cancelled between the two."""
    if not isinstance(writing, asyncio.Future) or not writing.done():
        await run_uncancelled(_write_then_notify(writing, written))
    elif pending := written(writing.result()):
        await run_uncancelled(_await_all(pending))


async def _write_then_notify(writing: Awaitable[T], written: Callable[[T], Pending]) -> None:
    await _await_all(written(await writing))


async def _await_all(pending: Pending) -> None:
    for work in pending:
        await work


def _lost_race(record: BoxRecord) -> Conflict:
    return Conflict(f"box {record.id} was changed by somebody else meanwhile", retryable=True)


def _event(record: BoxRecord, kind: str, *, old: str = "", new: str = "", reason: str = "", cause: str = "") -> Event:
    return Event(
        seq=0, at=time.time(), box_id=record.id, owner=record.owner, kind=kind, old=old, new=new, reason=reason,
        cause=cause,
    )  # fmt: skip
