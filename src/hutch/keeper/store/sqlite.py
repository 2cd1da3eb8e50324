"""The durable store: SQLite in WAL mode. `sqlite_writer` decides when and in which thread it is written."""

import json
import sqlite3
import time
from collections.abc import Awaitable
from pathlib import Path

from hutch.errors import Conflict, HutchError
from hutch.keeper.boxes.records import BoxRecord, Tombstone
from hutch.keeper.store.seal import Seal, from_store, to_store
from hutch.keeper.store.sqlite_writer import SqliteWriter
from hutch.keeper.store.store import (
    EVENTS_KEPT,
    TOMBSTONE_SECONDS,
    Known,
    in_order,
    key_taken,
    name_taken,
    only_tombstone,
    split_known,
)
from hutch.logs import log
from hutch.model.boxes import Event
from hutch.model.compatibility import decode_record
from hutch.model.ids import BoxId


class SqliteStore:
    """The `Store` protocol over one file. Several keepers may share it: SQLite serialises their transactions."""

    def __init__(self, path: Path, seal: Seal | None = None) -> None:
        self._seal = seal
        self._writer = SqliteWriter(path, lambda db: _seal_earlier(db, seal))
        self._do = self._writer.do

    def insert(self, record: BoxRecord, event: Event) -> Awaitable[None]:
        def work(db: sqlite3.Connection) -> None:
            try:
                db.execute(
                    "INSERT INTO boxes (id, owner, keeper, state, version, key, name, created_at, body) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    self._columns(record),
                )
            except sqlite3.IntegrityError as error:
                raise _taken(db, record) from error
            _append(db, event)

        return self._do(work)

    def replace(self, record: BoxRecord, expected: int, event: Event | None) -> Awaitable[bool]:
        def work(db: sqlite3.Connection) -> bool:
            try:
                changed = db.execute(
                    "UPDATE boxes SET owner = ?, keeper = ?, state = ?, version = ?, key = ?, name = ?, "
                    "created_at = ?, body = ? WHERE id = ? AND version = ?",
                    (*self._columns(record)[1:], record.id, expected),
                ).rowcount
            except sqlite3.IntegrityError as error:
                raise _taken(db, record) from error
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
                "INSERT OR REPLACE INTO tombstones (id, at, owner, name, body) VALUES (?, ?, ?, ?, ?)",
                (tombstone.id, tombstone.at, tombstone.owner, tombstone.name or None, tombstone.to_json()),
            )
            db.execute("DELETE FROM tombstones WHERE at < ?", (time.time() - TOMBSTONE_SECONDS,))
            _append(db, event)
            return True

        return self._do(work)

    async def get(self, box_id: BoxId) -> BoxRecord | None:
        return await self._one("SELECT body FROM boxes WHERE id = ?", (box_id,))

    async def by_key(self, owner: str, key: str) -> BoxRecord | None:
        return await self._one("SELECT body FROM boxes WHERE owner = ? AND key = ?", (owner, key))

    async def by_name(self, owner: str, name: str) -> BoxRecord | None:
        return await self._one("SELECT body FROM boxes WHERE owner = ? AND name = ?", (owner, name))

    async def by_prefix(self, owner: str, prefix: str) -> tuple[BoxRecord, ...]:
        query = "SELECT body FROM boxes WHERE owner = ? AND substr(id, 1, ?) = ? ORDER BY id"
        rows = await self._do(lambda db: db.execute(query, (owner, len(prefix), prefix)).fetchall(), long=True)
        return tuple(from_store(body, self._seal) for (body,) in rows)

    async def all(self, known: Known | None = None) -> tuple[BoxRecord, ...]:
        if known is None:
            rows = await self._do(lambda db: db.execute("SELECT body FROM boxes ORDER BY id").fetchall(), long=True)
            return tuple(from_store(body, self._seal) for (body,) in rows)
        versions = await self._do(lambda db: db.execute("SELECT id, version FROM boxes").fetchall(), long=True)
        return tuple(await self._records(versions, known))

    async def page(
        self, owner: str | None, known: Known, *, after: str = "", limit: int | None = None
    ) -> tuple[BoxRecord, ...]:
        later = "(created_at, id) > (SELECT created_at, id FROM boxes WHERE id = :after)" if after else "TRUE"
        query = (
            f"SELECT id, version FROM boxes WHERE {later} AND (:owner IS NULL OR owner = :owner)"
            " ORDER BY created_at, id LIMIT :limit"
        )
        values = {"after": after, "owner": owner, "limit": -1 if limit is None else limit}
        versions = await self._do(lambda db: db.execute(query, values).fetchall(), long=True)
        return in_order(versions, await self._records(versions, known))

    async def _records(self, versions: list[tuple[str, int]], known: Known) -> list[BoxRecord]:
        found, missing = split_known(versions, known)
        query = "SELECT body FROM boxes WHERE id IN (SELECT value FROM json_each(?))"
        if missing:
            ids = json.dumps(missing)
            rows = await self._do(lambda db: db.execute(query, (ids,)).fetchall(), long=True)
            found += [from_store(body, self._seal) for (body,) in rows]
        return found

    async def tombstone(self, box_id: BoxId) -> Tombstone | None:
        row = await self._do(lambda db: db.execute("SELECT body FROM tombstones WHERE id = ?", (box_id,)).fetchone())
        return decode_record(row[0], Tombstone) if row else None

    async def find_tombstone(self, owner: str, text: str) -> Tombstone | None:
        def work(db: sqlite3.Connection) -> list[tuple[bytes]]:
            by_name = "SELECT body FROM tombstones WHERE owner = ? AND name = ? ORDER BY at DESC LIMIT 1"
            by_prefix = "SELECT body FROM tombstones WHERE id >= ? AND id < ? AND owner = ? LIMIT 2"
            found: list[tuple[bytes]] = db.execute(by_name, (owner, text)).fetchall()
            return found or db.execute(by_prefix, (text, text + "~", owner)).fetchall()

        return only_tombstone(await self._do(work))

    async def events(self, after: int, limit: int) -> tuple[Event, ...]:
        query = "SELECT seq, body FROM events WHERE seq > ? ORDER BY seq LIMIT ?"
        rows = await self._do(lambda db: db.execute(query, (after, limit)).fetchall(), long=True)
        return tuple(decode_record(body, Event).but(seq=seq) for seq, body in rows)

    async def add_event(self, event: Event) -> None:
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
        return from_store(row[0], self._seal) if row else None

    def _columns(self, record: BoxRecord) -> tuple[str, str, str, str, int, str | None, str | None, float, bytes]:
        key, name, body = record.idempotency_key or None, record.spec.name or None, to_store(record, self._seal)
        columns = (record.id, record.owner, record.keeper, str(record.state), record.version, key, name)
        return *columns, record.created_at, body


def _seal_earlier(db: sqlite3.Connection, seal: Seal | None) -> None:
    """Seal environments that an earlier release wrote in plain text, and erase them from the file's free pages."""
    query = "SELECT body FROM boxes WHERE json_extract(CAST(body AS TEXT), '$.spec.env') != '{}'"
    if seal is None or not (rows := db.execute(query).fetchall()):
        return
    db.execute("BEGIN IMMEDIATE")
    for (body,) in rows:
        try:
            record = BoxRecord.from_json(body)
        except HutchError as error:  # written by a newer release, or broken: reading that box reports it
            log("store").warning("a record was not sealed", error=error)
            continue
        update = "UPDATE boxes SET body = ? WHERE id = ? AND version = ?"
        db.execute(update, (to_store(record, seal), record.id, record.version))
    db.execute("COMMIT")
    log("store").warning("environments that an earlier release kept in plain text are sealed now", boxes=len(rows))
    try:
        db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.OperationalError as error:  # another process is using the file
        remedy = "stop every Hutch on this state directory, then VACUUM the file"
        log("store").warning("free pages of the file may still hold plain environments", error=error, remedy=remedy)


def _taken(db: sqlite3.Connection, record: BoxRecord) -> Conflict:
    """Distinguish a taken name from a taken key by looking for the name: SQLite says which index it was only in
    words."""
    query = "SELECT 1 FROM boxes WHERE owner = ? AND name = ? AND id != ?"
    found = record.spec.name and db.execute(query, (record.owner, record.spec.name, record.id)).fetchone()
    return name_taken(record) if found else key_taken(record)


def _append(db: sqlite3.Connection, event: Event) -> None:
    cursor = db.execute(
        "INSERT INTO events (box_id, at, body) VALUES (?, ?, ?)", (event.box_id, event.at, event.to_json())
    )
    if cursor.lastrowid is not None and cursor.lastrowid % 1000 == 0:
        db.execute("DELETE FROM events WHERE seq <= ?", (cursor.lastrowid - EVENTS_KEPT,))
