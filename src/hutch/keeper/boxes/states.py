"""The one door: every change of a box's record is made here, by compare-and-set, with a reason and an event."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from hutch.errors import Conflict
from hutch.keeper.boxes.records import BoxRecord, Tombstone
from hutch.keeper.locks import run_uncancelled
from hutch.keeper.store.store import Store
from hutch.logs import redact
from hutch.model.boxes import Event
from hutch.model.state import State, may_move

Listener = Callable[[Event], None]
Witness = Callable[[BoxRecord | None, BoxRecord, Event | None], Awaitable[None] | None]
"""Gets the record before (None: it is new), the one after, and what the listeners are told. What it returns is waited
for."""
Told = list[Awaitable[None]]
"""Of a change that was written: what is still to be waited for."""

T = TypeVar("T")

_IN_WORDS = {
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
    """ "box x is being destroyed": the state as an error message says it (P4)."""
    reason = f": {record.reason}" if record.reason and record.state in (State.ERROR, State.UNKNOWN) else ""
    return f"box {record.id} {_IN_WORDS[record.state]}{reason}"


class Holder(Protocol):
    """Whoever keeps a record in memory."""

    record: BoxRecord


class States:
    """Moves boxes from state to state. Whoever lost a race gets Conflict and must look again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.listeners: list[Listener] = []
        self.witnesses: list[Witness] = []
        """See every change that was written, also those that are no event."""

    async def open(self, record: BoxRecord, opened: Callable[[], None] | None = None) -> BoxRecord:
        """Write the intent: from now on the box can be found and destroyed, whatever happens. `opened` is called then,
        even if the caller is cancelled while it is being written."""
        event = _event(record, "created", new=record.state, reason=record.reason)

        def written(_: None) -> Told:
            if opened is not None:
                opened()
            return self._tell(None, record, event)

        await _settled(self._store.insert(record, event), written)
        return record

    async def change(
        self, record: BoxRecord, to: State, *, reason: str, into: Holder | None = None, **fields: Any
    ) -> BoxRecord:
        """`into` gets the new record even if the caller is cancelled while it is being written."""
        if not may_move(record.state, to):
            raise Conflict(f"{describe_state(record)}, it cannot become {to}", details={"state": str(record.state)})
        reason = redact(reason)  # often an error's words, which may quote a command or a path with a secret
        moved = record.but(state=to, reason=reason, version=record.version + 1, **fields)
        event = _event(moved, "state", old=record.state, new=to, reason=reason)
        return await self._write(record, moved, event, into)

    async def update(
        self, record: BoxRecord, *, kind: str = "", reason: str = "", into: Holder | None = None, **fields: Any
    ) -> BoxRecord:
        """Change a record within its state (lease, instance facts); an event only if `kind` names one."""
        updated = record.but(version=record.version + 1, **fields)
        event = _event(updated, kind, reason=redact(reason)) if kind else None
        return await self._write(record, updated, event, into)

    async def forget(self, record: BoxRecord, reason: str) -> Tombstone:
        """The box is gone from its engine: drop the record, leave a tombstone."""
        if record.state is not State.STOPPING:
            raise Conflict(f"{describe_state(record)}: only a box that is being destroyed can be forgotten")
        reason = redact(reason)
        event = _event(record, "gone", old=record.state, reason=reason)
        tombstone = Tombstone(id=record.id, owner=record.owner, name=record.spec.name, reason=reason, at=event.at)
        if not await self._store.remove(tombstone, record.version, event):
            raise _lost_race(record)
        await _all(self._tell(record, record, event))
        return tombstone

    async def reassert(self, holder: Holder, keeper: str) -> bool:
        """Whether the box is still `keeper`'s. Whoever writes first has it, so its record is written once; the holder
        gets what the store has."""
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
        """Something that changed no box's record."""
        await self._store.add_event(event)
        for listener in self.listeners:
            listener(event)

    async def _write(self, old: BoxRecord, new: BoxRecord, event: Event | None, into: Holder | None) -> BoxRecord:
        def written(changed: bool) -> Told:
            if not changed:
                raise _lost_race(old)
            if into is not None:
                into.record = new
            return self._tell(old, new, event)

        await _settled(self._store.replace(new, old.version, event), written)
        return new

    def _tell(self, old: BoxRecord | None, new: BoxRecord, event: Event | None) -> Told:
        waiting = [seen for witness in self.witnesses if (seen := witness(old, new, event)) is not None]
        if event is not None:
            for listener in self.listeners:
                listener(event)
        return waiting


async def _settled(writing: Awaitable[T], written: Callable[[T], Told]) -> None:
    """What the store was asked to write, and what follows from it, though the caller may be cancelled between."""
    if not isinstance(writing, asyncio.Future) or not writing.done():
        await run_uncancelled(_followed(writing, written))
    elif told := written(writing.result()):
        await run_uncancelled(_all(told))


async def _followed(writing: Awaitable[T], written: Callable[[T], Told]) -> None:
    await _all(written(await writing))


async def _all(told: Told) -> None:
    for seen in told:
        await seen


def _lost_race(record: BoxRecord) -> Conflict:
    return Conflict(f"box {record.id} was changed by somebody else meanwhile", retryable=True)


def _event(record: BoxRecord, kind: str, *, old: str = "", new: str = "", reason: str = "") -> Event:
    return Event(
        seq=0, at=time.time(), box_id=record.id, owner=record.owner, kind=kind, old=old, new=new, reason=reason
    )
