"""The durable store: SQLite in WAL mode. What it keeps is here; how and when it is written, in `sqlite_writing`."""

import sqlite3
import time
from collections.abc import Awaitable
from pathlib import Path

from hutch.errors import Conflict
from hutch.keeper.records import BoxRecord, Tombstone
from hutch.keeper.sqlite_writing import SqliteWriter
from hutch.keeper.store import TOMBSTONE_SECONDS, key_taken, name_taken
from hutch.model.boxes import Event
from hutch.model.ids import BoxId
from hutch.model.reading import remembered

EVENTS_KEPT = 100_000


class SqliteStore:
    """The `Store` protocol over one file. Several keepers may share it: SQLite serialises their transactions."""

    def __init__(self, path: Path) -> None:
        self._writer = SqliteWriter(path)
        self._do = self._writer.do

    def insert(self, record: BoxRecord, event: Event) -> Awaitable[None]:
        def work(db: sqlite3.Connection) -> None:
            try:
                db.execute(
                    "INSERT INTO boxes (id, owner, keeper, state, version, key, name, body) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    _columns(record),
                )
            except sqlite3.IntegrityError as error:
                raise _taken(record, error) from error
            _append(db, event)

        return self._do(work)

    def replace(self, record: BoxRecord, expected: int, event: Event | None) -> Awaitable[bool]:
        def work(db: sqlite3.Connection) -> bool:
            try:
                changed = db.execute(
                    "UPDATE boxes SET owner = ?, keeper = ?, state = ?, version = ?, key = ?, name = ?, body = ? "
                    "WHERE id = ? AND version = ?",
                    (*_columns(record)[1:], record.id, expected),
                ).rowcount
            except sqlite3.IntegrityError as error:
                raise _taken(record, error) from error
            if changed and event is not None:
                _append(db, event)
            return bool(changed)

        return self._do(work)

    def remove(self, tombstone: Tombstone, expected: int, event: Event) -> Awaitable[bool]:
        def work(db: sqlite3.Connection) -> bool:
            gone = db.execute("DELETE FROM boxes WHERE id = ? AND version = ?", (tombstone.id, expected)).rowcount
            if not gone:
                return False
            db.execute(
                "INSERT OR REPLACE INTO tombstones (id, at, body) VALUES (?, ?, ?)",
                (tombstone.id, tombstone.at, tombstone.to_json()),
            )
            db.execute("DELETE FROM tombstones WHERE at < ?", (time.time() - TOMBSTONE_SECONDS,))
            _append(db, event)
            return True

        return self._do(work)

    async def get(self, box_id: BoxId) -> BoxRecord | None:
        return await self._one("SELECT body FROM boxes WHERE id = ?", (box_id,))

    async def by_key(self, owner: str, key: str) -> BoxRecord | None:
        return await self._one("SELECT body FROM boxes WHERE owner = ? AND key = ?", (owner, key))

    async def all(self) -> tuple[BoxRecord, ...]:
        rows = await self._do(lambda db: db.execute("SELECT body FROM boxes ORDER BY id").fetchall(), long=True)
        return tuple(BoxRecord.from_json(body) for (body,) in rows)

    async def tombstone(self, box_id: BoxId) -> Tombstone | None:
        row = await self._do(lambda db: db.execute("SELECT body FROM tombstones WHERE id = ?", (box_id,)).fetchone())
        return remembered(row[0], Tombstone) if row else None

    async def events(self, after: int, limit: int) -> tuple[Event, ...]:
        query = "SELECT seq, body FROM events WHERE seq > ? ORDER BY seq LIMIT ?"
        rows = await self._do(lambda db: db.execute(query, (after, limit)).fetchall(), long=True)
        return tuple(remembered(body, Event).but(seq=seq) for seq, body in rows)

    async def tell(self, event: Event) -> None:
        await self._do(lambda db: _append(db, event))

    async def put_note(self, kind: str, key: str, body: bytes, *, new: bool = False) -> bool:
        verb = "INSERT OR IGNORE" if new else "INSERT OR REPLACE"
        query = f"{verb} INTO notes (kind, key, body) VALUES (?, ?, ?)"
        return await self._do(lambda db: bool(db.execute(query, (kind, key, body)).rowcount))

    async def drop_note(self, kind: str, key: str) -> bool:
        query = "DELETE FROM notes WHERE kind = ? AND key = ?"
        return await self._do(lambda db: bool(db.execute(query, (kind, key)).rowcount))

    async def notes(self, kind: str) -> dict[str, bytes]:
        query = "SELECT key, body FROM notes WHERE kind = ? ORDER BY key"
        return await self._do(lambda db: dict(db.execute(query, (kind,)).fetchall()), long=True)

    async def close(self) -> None:
        await self._writer.close()

    async def _one(self, query: str, values: tuple[str, ...]) -> BoxRecord | None:
        row = await self._do(lambda db: db.execute(query, values).fetchone())
        return BoxRecord.from_json(row[0]) if row else None


def _columns(record: BoxRecord) -> tuple[str, str, str, str, int, str | None, str | None, bytes]:
    key, name = record.idempotency_key or None, record.spec.name or None
    return record.id, record.owner, record.keeper, str(record.state), record.version, key, name, record.to_json()


def _taken(record: BoxRecord, error: sqlite3.IntegrityError) -> Conflict:
    """SQLite tells only in words which index it was."""
    return name_taken(record) if "boxes.name" in str(error) else key_taken(record)


def _append(db: sqlite3.Connection, event: Event) -> None:
    cursor = db.execute(
        "INSERT INTO events (box_id, at, body) VALUES (?, ?, ?)", (event.box_id, event.at, event.to_json())
    )
    if cursor.lastrowid is not None and cursor.lastrowid % 1000 == 0:
        db.execute("DELETE FROM events WHERE seq <= ?", (cursor.lastrowid - EVENTS_KEPT,))
