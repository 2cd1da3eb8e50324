"""The durable store: SQLite in WAL mode, one writer thread, many writes in one commit.

Writes queue up for the thread; it takes all that wait, runs each in a savepoint, commits once, and only then answers.
So an answered write is in the log, a refused one left no trace, and a hundred concurrent creations pay for few commits.
"""

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hutch.errors import Conflict, HutchError, Unavailable
from hutch.keeper.records import BoxRecord, Tombstone
from hutch.keeper.schema import migrate
from hutch.keeper.sqlite_problems import problem
from hutch.keeper.store import TOMBSTONE_SECONDS
from hutch.model.boxes import Event
from hutch.model.ids import BoxId
from hutch.model.reading import remembered

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], Any]
Waiting = tuple[Work, "asyncio.Future[Any]"]

BATCH = 256
EVENTS_KEPT = 100_000


class SqliteStore:
    """The `Store` protocol over one file. Several keepers may share it: SQLite serialises their transactions."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = path
        self._queue: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="hutch-store", daemon=True)
        self._thread.start()

    # --- the protocol ---------------------------------------------------------------------------------------

    async def insert(self, record: BoxRecord, event: Event) -> None:
        def work(db: sqlite3.Connection) -> None:
            try:
                db.execute(
                    "INSERT INTO boxes (id, owner, keeper, state, version, key, body) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (*_columns(record), record.idempotency_key or None, record.to_json()),
                )
            except sqlite3.IntegrityError as error:
                raise Conflict(f"box {record.id} or its idempotency key exists", op="create") from error
            _append(db, event)

        await self._do(work)

    async def replace(self, record: BoxRecord, expected: int, event: Event | None) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            try:
                changed = db.execute(
                    "UPDATE boxes SET owner = ?, keeper = ?, state = ?, version = ?, key = ?, body = ? "
                    "WHERE id = ? AND version = ?",
                    (*_columns(record)[1:], record.idempotency_key or None, record.to_json(), record.id, expected),
                ).rowcount
            except sqlite3.IntegrityError as error:
                raise Conflict("the idempotency key is another box's", op="create") from error
            if changed and event is not None:
                _append(db, event)
            return bool(changed)

        return await self._do(work)

    async def remove(self, tombstone: Tombstone, expected: int, event: Event) -> bool:
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

        return await self._do(work)

    async def get(self, box_id: BoxId) -> BoxRecord | None:
        return await self._one("SELECT body FROM boxes WHERE id = ?", (box_id,))

    async def by_key(self, owner: str, key: str) -> BoxRecord | None:
        return await self._one("SELECT body FROM boxes WHERE owner = ? AND key = ?", (owner, key))

    async def all(self) -> tuple[BoxRecord, ...]:
        rows = await self._do(lambda db: db.execute("SELECT body FROM boxes ORDER BY id").fetchall())
        return tuple(BoxRecord.from_json(body) for (body,) in rows)

    async def tombstone(self, box_id: BoxId) -> Tombstone | None:
        row = await self._do(lambda db: db.execute("SELECT body FROM tombstones WHERE id = ?", (box_id,)).fetchone())
        return remembered(row[0], Tombstone) if row else None

    async def events(self, after: int, limit: int) -> tuple[Event, ...]:
        query = "SELECT seq, body FROM events WHERE seq > ? ORDER BY seq LIMIT ?"
        rows = await self._do(lambda db: db.execute(query, (after, limit)).fetchall())
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
        return await self._do(lambda db: dict(db.execute(query, (kind,)).fetchall()))

    async def close(self) -> None:
        if self._thread.is_alive():
            self._queue.put(None)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    # --- the thread -----------------------------------------------------------------------------------------

    async def _one(self, query: str, values: tuple[str, ...]) -> BoxRecord | None:
        row = await self._do(lambda db: db.execute(query, values).fetchone())
        return BoxRecord.from_json(row[0]) if row else None

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._failure is not None:
            raise problem(self._path, self._failure)
        if not self._thread.is_alive():
            raise Unavailable(f"the store {self._path} is closed")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put((work, future))
        return await future

    def _serve(self) -> None:
        try:
            db = sqlite3.connect(self._path, isolation_level=None, timeout=30.0)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA cache_size = -512")  # kB: the rest of a growing file need not stay in memory
            migrate(db)
        except (sqlite3.Error, HutchError) as error:
            self._failure = error
            self._refuse_all(error)
            return
        try:
            while (batch := self._next_batch()) is not None:
                self._commit(db, batch)
        finally:
            db.close()

    def _next_batch(self) -> list[Waiting] | None:
        first = self._queue.get()
        if first is None:
            return None
        batch = [first]
        while len(batch) < BATCH:
            try:
                waiting = self._queue.get_nowait()
            except queue.Empty:
                break
            if waiting is None:
                self._queue.put(None)
                break
            batch.append(waiting)
        return batch

    def _commit(self, db: sqlite3.Connection, batch: list[Waiting]) -> None:
        answers: list[tuple[asyncio.Future[Any], Any, BaseException | None]] = []
        try:
            db.execute("BEGIN IMMEDIATE")
            for work, future in batch:
                answers.append((future, *self._attempt(db, work)))
            db.execute("COMMIT")
        except sqlite3.Error as error:
            refusal = problem(self._path, error)
            if db.in_transaction:
                db.execute("ROLLBACK")
            answers = [(future, None, refusal) for _, future in batch]
        loops = {future.get_loop() for future, _, _ in answers}
        for loop in loops:  # one call for all of a loop's: each one wakes it up
            loop.call_soon_threadsafe(_answer_all, [each for each in answers if each[0].get_loop() is loop])

    def _refuse_all(self, error: BaseException) -> None:
        """The file cannot be opened: everybody who waits, or comes later, is told."""
        while (waiting := self._queue.get()) is not None:
            future = waiting[1]
            future.get_loop().call_soon_threadsafe(_answer, future, None, problem(self._path, error))

    def _attempt(self, db: sqlite3.Connection, work: Work) -> tuple[Any, BaseException | None]:
        db.execute("SAVEPOINT one")
        try:
            result = work(db)
        except (HutchError, sqlite3.Error) as error:
            if not db.in_transaction:  # a full disk ends the whole transaction (sqlite.org/lang_transaction.html)
                raise
            db.execute("ROLLBACK TO one")
            db.execute("RELEASE one")
            return None, problem(self._path, error)
        db.execute("RELEASE one")
        return result, None


def _answer_all(answers: "list[tuple[asyncio.Future[Any], Any, BaseException | None]]") -> None:
    for future, result, failure in answers:
        _answer(future, result, failure)


def _answer(future: "asyncio.Future[Any]", result: Any, failure: BaseException | None) -> None:
    if future.done():
        return
    if failure is not None:
        future.set_exception(failure)
    else:
        future.set_result(result)


def _columns(record: BoxRecord) -> tuple[str, str, str, str, int]:
    return record.id, record.owner, record.keeper, str(record.state), record.version


def _append(db: sqlite3.Connection, event: Event) -> None:
    cursor = db.execute(
        "INSERT INTO events (box_id, at, body) VALUES (?, ?, ?)", (event.box_id, event.at, event.to_json())
    )
    if cursor.lastrowid is not None and cursor.lastrowid % 1000 == 0:
        db.execute("DELETE FROM events WHERE seq <= ?", (cursor.lastrowid - EVENTS_KEPT,))
