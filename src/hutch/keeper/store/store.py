"""The protocol of every record store, and the store in memory."""

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from hutch.errors import Conflict
from hutch.keeper.boxes.records import BoxRecord, Tombstone
from hutch.model.boxes import Event
from hutch.model.compatibility import decode_record
from hutch.model.ids import BoxId

EVENTS_KEPT = 100_000
"""The newest events that a database keeps."""
TOMBSTONE_SECONDS = 7 * 24 * 3600.0


Known = Callable[[BoxId], BoxRecord | None]
"""Looks up a record that the caller has in memory."""


class Store(Protocol):
    """Boxes, tombstones, events and notes. Each write of a record and its event is one transaction.

    `insert`, `replace` and `remove` may finish within the call: they then return a future that is done already.
    """

    def insert(self, record: BoxRecord, event: Event) -> Awaitable[None]:
        """Add a new box.

        Raises:
            Conflict: the id, the owner's idempotency key or the owner's name for it is taken.
        """
        ...

    def replace(self, record: BoxRecord, expected: int, event: Event | None) -> Awaitable[bool]:
        """Replace the record if the stored version is `expected`; otherwise write nothing and return False.

        Raises:
            Conflict: the owner's idempotency key or name for it belongs to another box.
        """
        ...

    def remove(self, tombstone: Tombstone, expected: int, event: Event) -> Awaitable[bool]:
        """Replace the record by its tombstone if the stored version is `expected`; otherwise return False."""
        ...

    async def get(self, box_id: BoxId) -> BoxRecord | None: ...

    async def by_key(self, owner: str, key: str) -> BoxRecord | None:
        """Return the box that was created with this idempotency key."""

    async def by_name(self, owner: str, name: str) -> BoxRecord | None: ...

    async def by_prefix(self, owner: str, prefix: str) -> tuple[BoxRecord, ...]:
        """Return the owner's boxes whose ids begin with `prefix`, in the order of their ids."""

    async def all(self, known: "Known | None" = None) -> tuple[BoxRecord, ...]:
        """Return every record. Those that `known` has in the stored version are neither read nor decoded."""

    async def page(
        self, owner: str | None, known: "Known", *, after: str = "", limit: int | None = None
    ) -> tuple[BoxRecord, ...]:
        """Return the owner's records, oldest first; None means all owners. At most `limit`, of those after `after`.

        It costs as much as what it returns; `known` is that of `all`. Without a record `after` there is nothing.
        """
        ...

    async def tombstone(self, box_id: BoxId) -> Tombstone | None: ...

    async def find_tombstone(self, owner: str, text: str) -> Tombstone | None:
        """Return the owner's latest tombstone of this name, else the only one whose id starts with `text`."""

    async def events(self, after: int, limit: int) -> tuple[Event, ...]: ...

    async def add_event(self, event: Event) -> None:
        """Add an event that changes no box."""

    async def put_note(self, kind: str, key: str, body: bytes, *, new: bool = False) -> bool:
        """Store a small fact such as a volume or a default box. With `new`, an existing note stays: False."""

    async def drop_note(self, kind: str, key: str) -> bool:
        """Remove a note; False if there was none."""

    async def notes(self, kind: str) -> dict[str, bytes]: ...

    async def close(self) -> None: ...


class MemoryStore:
    """The store of a process that leaves nothing on disk: tests, `hutch run`, one-off scripts."""

    def __init__(self) -> None:
        self._boxes: dict[BoxId, BoxRecord] = {}
        self._keys: dict[tuple[str, str], BoxId] = {}
        self._tombstones: dict[BoxId, Tombstone] = {}
        self._events: list[Event] = []
        self._notes: dict[str, dict[str, bytes]] = {}
        self._sequence = 0

    async def insert(self, record: BoxRecord, event: Event) -> None:
        key = (record.owner, record.idempotency_key)
        if record.id in self._boxes or (record.idempotency_key and key in self._keys):
            raise key_taken(record)
        self._check_name(record)
        self._boxes[record.id] = record
        if record.idempotency_key:
            self._keys[key] = record.id
        self._append(event)

    async def replace(self, record: BoxRecord, expected: int, event: Event | None) -> bool:
        current = self._boxes.get(record.id)
        if current is None or current.version != expected:
            return False
        if (record.owner, record.spec.name) != (current.owner, current.spec.name):
            self._check_name(record)
        key, old_key = (record.owner, record.idempotency_key), (current.owner, current.idempotency_key)
        if record.idempotency_key and self._keys.get(key, record.id) != record.id:
            raise key_taken(record)
        self._boxes[record.id] = record
        if key != old_key:
            self._keys.pop(old_key, None)
        if record.idempotency_key:
            self._keys[key] = record.id
        if event is not None:
            self._append(event)
        return True

    async def remove(self, tombstone: Tombstone, expected: int, event: Event) -> bool:
        current = self._boxes.get(tombstone.id)
        if current is None or current.version != expected:
            return False
        del self._boxes[tombstone.id]
        self._keys.pop((current.owner, current.idempotency_key), None)
        self._tombstones[tombstone.id] = tombstone
        self._expire_tombstones()
        self._append(event)
        return True

    async def get(self, box_id: BoxId) -> BoxRecord | None:
        return self._boxes.get(box_id)

    async def by_key(self, owner: str, key: str) -> BoxRecord | None:
        box_id = self._keys.get((owner, key))
        return None if box_id is None else self._boxes.get(box_id)

    async def by_name(self, owner: str, name: str) -> BoxRecord | None:
        named = (box for box in self._boxes.values() if (box.owner, box.spec.name) == (owner, name))
        return next(named, None) if name else None

    async def by_prefix(self, owner: str, prefix: str) -> tuple[BoxRecord, ...]:
        found = [box for box in self._boxes.values() if box.owner == owner and box.id.startswith(prefix)]
        return tuple(sorted(found, key=lambda box: box.id))

    async def all(self, known: Known | None = None) -> tuple[BoxRecord, ...]:
        return tuple(self._boxes.values())

    async def page(
        self, owner: str | None, known: Known, *, after: str = "", limit: int | None = None
    ) -> tuple[BoxRecord, ...]:
        found = sorted(
            (box for box in self._boxes.values() if owner in (None, box.owner)),
            key=lambda box: (box.created_at, box.id),
        )
        if after:
            begin = next((number for number, box in enumerate(found, 1) if box.id == after), len(found))
            found = found[begin:]
        return tuple(found[:limit])

    async def tombstone(self, box_id: BoxId) -> Tombstone | None:
        return self._tombstones.get(box_id)

    async def find_tombstone(self, owner: str, text: str) -> Tombstone | None:
        own = [tombstone for tombstone in self._tombstones.values() if tombstone.owner == owner]
        by_name = [tombstone for tombstone in own if text and tombstone.name == text]
        by_prefix = [tombstone for tombstone in own if tombstone.id.startswith(text)]
        return by_name[-1] if by_name else by_prefix[0] if len(by_prefix) == 1 else None

    async def events(self, after: int, limit: int) -> tuple[Event, ...]:
        return tuple(event for event in self._events if event.seq > after)[:limit]

    async def add_event(self, event: Event) -> None:
        self._append(event)

    async def put_note(self, kind: str, key: str, body: bytes, *, new: bool = False) -> bool:
        notes = self._notes.setdefault(kind, {})
        if new and key in notes:
            return False
        notes[key] = body
        return True

    async def drop_note(self, kind: str, key: str) -> bool:
        return self._notes.get(kind, {}).pop(key, None) is not None

    async def notes(self, kind: str) -> dict[str, bytes]:
        return dict(sorted(self._notes.get(kind, {}).items()))

    async def close(self) -> None:
        self._boxes.clear()

    def _check_name(self, record: BoxRecord) -> None:
        name = record.spec.name
        others = (other for other in self._boxes.values() if other.id != record.id and other.owner == record.owner)
        if name and any(other.spec.name == name for other in others):
            raise name_taken(record)

    def _append(self, event: Event) -> None:
        self._sequence += 1
        self._events.append(event.but(seq=self._sequence))
        if len(self._events) > 20_000:
            del self._events[:10_000]

    def _expire_tombstones(self) -> None:
        """Drop old tombstones from the front: a dict keeps the order of insertion."""
        limit = time.time() - TOMBSTONE_SECONDS
        while self._tombstones:
            oldest = next(iter(self._tombstones.values()))
            if oldest.at >= limit and len(self._tombstones) <= 10_000:
                return
            del self._tombstones[oldest.id]


def split_known(versions: Iterable[tuple[str, int]], known: Known) -> tuple[list[BoxRecord], list[str]]:
    """Split stored versions into the records that the caller has, and the ids of those to read."""
    found: list[BoxRecord] = []
    missing: list[str] = []
    for box_id, version in versions:
        record = known(BoxId(box_id))
        if record is not None and record.version == version:
            found.append(record)
        else:
            missing.append(box_id)
    return found, missing


def in_order(versions: Iterable[tuple[str, int]], records: Iterable[BoxRecord]) -> tuple[BoxRecord, ...]:
    """Order records as their rows. One that was removed after its row was read is missing."""
    by_id: dict[str, BoxRecord] = {record.id: record for record in records}
    return tuple(by_id[box_id] for box_id, _ in versions if box_id in by_id)


def only_tombstone(rows: list[tuple[bytes]]) -> Tombstone | None:
    """Return the tombstone of the only row; None if the text could mean two boxes."""
    return decode_record(rows[0][0], Tombstone) if len(rows) == 1 else None


def key_taken(record: BoxRecord) -> Conflict:
    return Conflict(f"box {record.id} or its idempotency key exists", op="create")


def name_taken(record: BoxRecord) -> Conflict:
    return Conflict(
        f"another box is called {record.spec.name} already",
        details={"name": record.spec.name},
        remedy="choose another name, or rename or destroy that box",
    )
