"""The store that keepers on several machines share: PostgreSQL, one statement for each write.

The server runs a statement as a transaction of its own: a client that stops or loses its connection meanwhile holds no
lock and leaves nothing half done. If the answer is lost, the write is tried again, and the second attempt can find out
whether the first one succeeded: nobody else writes the same version with the same body.
"""

import time

import psycopg

from hutch.errors import Conflict
from hutch.keeper.boxes.records import BoxRecord, Tombstone
from hutch.keeper.store.postgres_connections import EVENTS_LOCK, TIMEOUT_SECONDS, Connection, Connections
from hutch.keeper.store.seal import Seal, from_store, to_store
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
from hutch.model.boxes import Event
from hutch.model.compatibility import decode_record
from hutch.model.ids import BoxId

# A number is drawn from the sequence before its event is visible, so events may appear out of order. Writers hold this
# lock, shared, from before they draw until they have committed: a reader that gets it alone has waited for all of them.
_WRITER = f"WITH writer AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared({EVENTS_LOCK}))"
_INSERT_EVENT = "INSERT INTO hutch.events (box_id, at, body) SELECT %s, %s, %s FROM writer, done RETURNING seq"
_INSERT = (
    "INSERT INTO hutch.boxes (id, owner, keeper, state, version, key, name, created_at, body)"
    " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
_REPLACE = (
    "UPDATE hutch.boxes SET owner = %s, keeper = %s, state = %s, version = %s, key = %s, name = %s, created_at = %s,"
    " body = %s WHERE id = %s AND version = %s"
)
_REMOVE = "DELETE FROM hutch.boxes WHERE id = %s AND version = %s"
_INSERT_TOMBSTONE = (
    "INSERT INTO hutch.tombstones (id, at, owner, name, body) SELECT %s, %s, %s, %s, %s FROM done"
    " ON CONFLICT (id) DO UPDATE SET at = excluded.at, body = excluded.body"
)
_SETTLED = (
    f"WITH alone AS MATERIALIZED (SELECT pg_advisory_xact_lock({EVENTS_LOCK}))"
    " SELECT counter.last_value FROM alone, hutch.events_seq_seq AS counter"
)


class PostgresStore:
    """The `Store` protocol over one database, with its tables in the schema `hutch`."""

    def __init__(self, url: str, seal: Seal | None = None, *, timeout: float = TIMEOUT_SECONDS) -> None:
        """Keepers that share the database share the key of `seal`; without one, environments are in plain text."""
        self._seal = seal
        self.connections = Connections(url, timeout)

    async def insert(self, record: BoxRecord, event: Event) -> None:
        query = f"{_WRITER}, done AS ({_INSERT} RETURNING 1) {_INSERT_EVENT}"
        columns = self._columns(record)

        def work(db: Connection, retried: bool) -> None:
            try:
                added = db.execute(query, (*columns, *_event_values(event))).fetchone()
            except psycopg.errors.UniqueViolation as error:
                if retried and _holds(db, columns):
                    return
                raise _taken(record, error) from error
            _trim_events(db, added)

        await self.connections.run(work)

    async def replace(self, record: BoxRecord, expected: int, event: Event | None) -> bool:
        columns = self._columns(record)
        values = (*columns[1:], record.id, expected)
        query = f"{_WRITER}, done AS ({_REPLACE} RETURNING 1) {_INSERT_EVENT}"

        def work(db: Connection, retried: bool) -> bool:
            try:
                cursor = (
                    db.execute(_REPLACE, values)
                    if event is None
                    else db.execute(query, (*values, *_event_values(event)))
                )
            except psycopg.errors.UniqueViolation as error:
                raise _taken(record, error) from error
            if cursor.rowcount and event is not None:
                _trim_events(db, cursor.fetchone())
            return bool(cursor.rowcount) or (retried and _holds(db, columns))

        return await self.connections.run(work)

    async def remove(self, tombstone: Tombstone, expected: int, event: Event) -> bool:
        values = (tombstone.id, tombstone.at, tombstone.owner, tombstone.name or None, tombstone.to_json())
        query = f"{_WRITER}, done AS ({_REMOVE} RETURNING 1), buried AS ({_INSERT_TOMBSTONE}) {_INSERT_EVENT}"

        def work(db: Connection, retried: bool) -> bool:
            added = db.execute(query, (tombstone.id, expected, *values, *_event_values(event))).fetchone()
            if added is None:
                stored = _body(db, "SELECT body FROM hutch.tombstones WHERE id = %s", tombstone.id)
                return retried and stored == values[-1]
            _trim_events(db, added)
            db.execute("DELETE FROM hutch.tombstones WHERE at < %s", (time.time() - TOMBSTONE_SECONDS,))
            return True

        return await self.connections.run(work)

    async def get(self, box_id: BoxId) -> BoxRecord | None:
        return await self._one("SELECT body FROM hutch.boxes WHERE id = %s", box_id)

    async def by_key(self, owner: str, key: str) -> BoxRecord | None:
        return await self._one("SELECT body FROM hutch.boxes WHERE owner = %s AND key = %s", owner, key)

    async def by_name(self, owner: str, name: str) -> BoxRecord | None:
        return await self._one("SELECT body FROM hutch.boxes WHERE owner = %s AND name = %s", owner, name)

    async def by_prefix(self, owner: str, prefix: str) -> tuple[BoxRecord, ...]:
        query = "SELECT body FROM hutch.boxes WHERE owner = %s AND starts_with(id, %s) ORDER BY id"
        rows = await self.connections.run(lambda db, _: db.execute(query, (owner, prefix)).fetchall())
        return tuple(from_store(_bytes(body), self._seal) for (body,) in rows)

    async def all(self, known: Known | None = None) -> tuple[BoxRecord, ...]:
        if known is None:
            query = "SELECT body FROM hutch.boxes ORDER BY id"
            rows = await self.connections.run(lambda db, _: db.execute(query).fetchall())
            return tuple(from_store(_bytes(body), self._seal) for (body,) in rows)
        query = "SELECT id, version FROM hutch.boxes"
        rows = await self.connections.run(lambda db, _: db.execute(query).fetchall())
        return tuple(await self._records(_versions(rows), known))

    async def page(
        self, owner: str | None, known: Known, *, after: str = "", limit: int | None = None
    ) -> tuple[BoxRecord, ...]:
        later = "(created_at, id) > (SELECT created_at, id FROM hutch.boxes WHERE id = %(after)s)" if after else "TRUE"
        mine = "TRUE" if owner is None else "owner = %(owner)s"
        query = f"SELECT id, version FROM hutch.boxes WHERE {later} AND {mine} ORDER BY created_at, id LIMIT %(limit)s"
        values = {"after": after, "owner": owner, "limit": limit}
        rows = await self.connections.run(lambda db, _: db.execute(query.encode(), values).fetchall())
        versions = _versions(rows)
        return in_order(versions, await self._records(versions, known))

    async def _records(self, versions: list[tuple[str, int]], known: Known) -> list[BoxRecord]:
        found, missing = split_known(versions, known)
        if missing:
            bodies = "SELECT body FROM hutch.boxes WHERE id = ANY(%s)"
            rows = await self.connections.run(lambda db, _: db.execute(bodies, (missing,)).fetchall())
            found += [from_store(_bytes(body), self._seal) for (body,) in rows]
        return found

    async def tombstone(self, box_id: BoxId) -> Tombstone | None:
        query = "SELECT body FROM hutch.tombstones WHERE id = %s"
        body = await self.connections.run(lambda db, _: _body(db, query, box_id))
        return None if body is None else decode_record(body, Tombstone)

    async def find_tombstone(self, owner: str, text: str) -> Tombstone | None:
        by_name = "SELECT body FROM hutch.tombstones WHERE owner = %s AND name = %s ORDER BY at DESC LIMIT 1"
        by_prefix = "SELECT body FROM hutch.tombstones WHERE starts_with(id, %s) AND owner = %s LIMIT 2"

        def work(db: Connection, _: bool) -> list[tuple[bytes]]:
            found = db.execute(by_name, (owner, text)).fetchall()
            found = found or db.execute(by_prefix, (text, owner)).fetchall()
            return [(_bytes(body),) for (body,) in found]

        return only_tombstone(await self.connections.run(work))

    async def events(self, after: int, limit: int) -> tuple[Event, ...]:
        """Return only events before which no other can still appear, so that following the last number misses none."""
        query = "SELECT seq, body FROM hutch.events WHERE seq > %s AND seq <= %s ORDER BY seq LIMIT %s"

        def work(db: Connection, _: bool) -> list[tuple[object, ...]]:
            settled = db.execute(_SETTLED).fetchone()
            return db.execute(query, (after, settled[0] if settled else 0, limit)).fetchall()

        rows = await self.connections.run(work)
        return tuple(decode_record(_bytes(body), Event).but(seq=seq) for seq, body in rows)

    async def add_event(self, event: Event) -> None:
        query = f"{_WRITER}, done AS (SELECT 1) {_INSERT_EVENT}"
        await self.connections.run(lambda db, _: _trim_events(db, db.execute(query, _event_values(event)).fetchone()))

    async def put_note(self, kind: str, key: str, body: bytes, *, new: bool = False) -> bool:
        action = "NOTHING" if new else "UPDATE SET body = excluded.body"
        query = f"INSERT INTO hutch.notes (kind, key, body) VALUES (%s, %s, %s) ON CONFLICT (kind, key) DO {action}"
        found = "SELECT body FROM hutch.notes WHERE kind = %s AND key = %s"

        def work(db: Connection, retried: bool) -> bool:
            written = bool(db.execute(query.encode(), (kind, key, body)).rowcount)
            return written or (retried and _body(db, found, kind, key) == body)

        return await self.connections.run(work)

    async def drop_note(self, kind: str, key: str) -> bool:
        query = "DELETE FROM hutch.notes WHERE kind = %s AND key = %s"
        return await self.connections.run(lambda db, _: bool(db.execute(query, (kind, key)).rowcount))

    async def notes(self, kind: str) -> dict[str, bytes]:
        # The order of bytes, as in SQLite, whatever the database's collation.
        query = 'SELECT key, body FROM hutch.notes WHERE kind = %s ORDER BY key COLLATE "C"'
        rows = await self.connections.run(lambda db, _: db.execute(query, (kind,)).fetchall())
        return {str(key): _bytes(body) for key, body in rows}

    async def close(self) -> None:
        await self.connections.close()

    def _columns(self, record: BoxRecord) -> tuple[str, str, str, str, int, str | None, str | None, float, bytes]:
        key, name, body = record.idempotency_key or None, record.spec.name or None, to_store(record, self._seal)
        columns = (record.id, record.owner, record.keeper, str(record.state), record.version, key, name)
        return *columns, record.created_at, body

    async def _one(self, query: str, *values: str) -> BoxRecord | None:
        body = await self.connections.run(lambda db, _: _body(db, query, *values))
        return None if body is None else from_store(body, self._seal)


def _taken(record: BoxRecord, error: psycopg.errors.UniqueViolation) -> Conflict:
    return name_taken(record) if error.diag.constraint_name == "boxes_by_name" else key_taken(record)


def _event_values(event: Event) -> tuple[str, float, bytes]:
    return event.box_id, event.at, event.to_json()


def _trim_events(db: Connection, added: tuple[object, ...] | None) -> None:
    """Remove the oldest events after every thousandth new one."""
    seq = int(str(added[0])) if added else 0
    if seq and seq % 1000 == 0:
        db.execute("DELETE FROM hutch.events WHERE seq <= %s", (seq - EVENTS_KEPT,))


def _holds(db: Connection, columns: tuple[str | int | float | bytes | None, ...]) -> bool:
    return _body(db, "SELECT body FROM hutch.boxes WHERE id = %s", str(columns[0])) == columns[-1]


def _body(db: Connection, query: str, *values: str) -> bytes | None:
    row = db.execute(query.encode(), values).fetchone()
    return _bytes(row[0]) if row else None


def _versions(rows: list[tuple[object, ...]]) -> list[tuple[str, int]]:
    return [(str(box_id), int(str(version))) for box_id, version in rows]


def _bytes(value: object) -> bytes:
    assert isinstance(value, bytes)
    return value
