"""Receipts in SQLite, in a file of their own, so that the store never waits for a lock of the receipts."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from hutch.errors import Unavailable
from hutch.keeper.receipts.chain import Row, link
from hutch.keeper.receipts.ledger import HEADS_KEPT_SECONDS, PRUNE_BATCH, EndedChain, by_box, oldest_beyond
from hutch.keeper.store.schema import LEDGER_STEPS, migrate
from hutch.keeper.store.sqlite_files import open_database
from hutch.model.receipts import Chain, Pruned, Receipt

T = TypeVar("T")

_LOCK_TIMEOUT = 30.0
"""Seconds that a statement waits for other writers."""
COLUMNS = (
    "box", "owner", "count", "head", "begun_at", "last_at", "last_op", "ended_at", "pruned_at", "pruned_why",
    "pruned_limit",
)  # fmt: skip
"""The columns of a chain in its table."""
_ADD = "INSERT INTO receipts (box, seq, hash, body) VALUES (?, ?, ?, ?)"
# SQLite stores a value of any type in any column: a cast reads what somebody else wrote there as our type.
_CHAIN = (
    "SELECT CAST(box AS TEXT), CAST(owner AS TEXT), CAST(count AS INTEGER), CAST(head AS TEXT), CAST(begun_at AS REAL),"
    " CAST(last_at AS REAL), CAST(last_op AS TEXT), CAST(ended_at AS REAL), CAST(pruned_at AS REAL),"
    " CAST(pruned_why AS TEXT), CAST(pruned_limit AS REAL) FROM chains"
)
_ROWS = (
    "SELECT CAST(seq AS INTEGER), CAST(hash AS TEXT), CAST(body AS BLOB) FROM receipts"
    " WHERE box = ? AND seq > ? ORDER BY seq LIMIT ?"
)
_HELD = "SELECT coalesce(sum(count), 0) FROM chains WHERE owner = ? AND (pruned_at = 0 OR pruned_at >= ?)"
_AGED = (
    "SELECT CAST(box AS TEXT) FROM chains WHERE pruned_at = 0 AND ended_at > 0 AND ended_at < ?"
    " ORDER BY ended_at LIMIT ?"
)
_CROWDED = "SELECT CAST(owner AS TEXT), sum(count) FROM chains WHERE pruned_at = 0 GROUP BY owner HAVING sum(count) > ?"
_OLDEST = (
    "SELECT CAST(box AS TEXT), CAST(count AS INTEGER) FROM chains"
    " WHERE pruned_at = 0 AND owner = ? AND ended_at > 0 AND ended_at <= ? ORDER BY ended_at LIMIT ?"
)
_MARK = "UPDATE chains SET pruned_at = ?, pruned_why = ?, pruned_limit = ? WHERE box = ?"
_KEEP = f"INSERT OR REPLACE INTO chains ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"


class SqliteLedger:
    """The `Ledger` protocol over one file. Several keepers may share it: SQLite serialises their transactions."""

    def __init__(self, path: Path, *, synced: bool = False) -> None:
        self._path = path
        self._synced = synced
        """True if every commit reaches the disk before it is answered; else a power cut may lose the last ones."""
        self._db: sqlite3.Connection | None = None
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hutch-receipts")

    async def append(self, drafts: Sequence[Receipt]) -> None:
        def work(db: sqlite3.Connection) -> None:
            for box, each in by_box(drafts):
                chain, rows = link(_chain(db, box), each)
                db.executemany(_ADD, [(box, *row) for row in rows])
                db.execute(_KEEP, chain_values(chain))

        await self._do(work, writes=True)

    async def chain(self, box: str) -> Chain | None:
        return await self._do(lambda db: _chain(db, box))

    async def chains(self, owner: str | None, after: str, limit: int) -> list[Chain]:
        query = f"{_CHAIN} WHERE box > ? AND (? IS NULL OR owner = ?) ORDER BY box LIMIT ?"
        rows = await self._do(lambda db: db.execute(query, (after, owner, owner, limit)).fetchall())
        return [chain_of(row) for row in rows]

    async def rows(self, box: str, after: int, limit: int) -> list[Row]:
        rows = await self._do(lambda db: db.execute(_ROWS, (box, after, limit)).fetchall())
        return [Row(*row) for row in rows]

    async def count_held(self, owner: str, since: float) -> int:
        rows = await self._do(lambda db: db.execute(_HELD, (owner, since)).fetchall())
        return int(rows[0][0])

    async def prune(self, before: float, most: int) -> int:
        gone = 0
        while some := await self._do(lambda db: _prune(db, before, most), writes=True):
            gone += some
        return gone

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._db is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._db.close)
        self._thread.shutdown(wait=False)

    async def _do(self, work: Callable[[sqlite3.Connection], T], *, writes: bool = False) -> T:
        if self._closed:
            raise Unavailable(f"the receipts in {self._path} are closed", retryable=False)
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, work, writes)

    def _run(self, work: Callable[[sqlite3.Connection], T], writes: bool) -> T:
        try:
            db = self._opened()
            if not writes:
                return work(db)
            db.execute("BEGIN IMMEDIATE")
            try:
                result = work(db)
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            return result
        except sqlite3.Error as error:
            raise Unavailable(f"the receipts in {self._path} could not be reached: {error}") from error

    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            db = open_database(self._path, timeout=_LOCK_TIMEOUT, synced=self._synced)
            db.text_factory = lambda data: data.decode(
                "utf-8", "replace"
            )  # text that cannot be decoded breaks its chain, not this process
            try:
                migrate(db, LEDGER_STEPS)
            except BaseException:
                db.close()
                raise
            self._db = db
        return self._db


def chain_of(row: Sequence[object]) -> Chain:
    """Build a chain from a row; an unknown reason for pruning counts as none."""
    fields = dict(zip(COLUMNS, row, strict=True))
    why = str(fields.pop("pruned_why"))
    return Chain(**fields, pruned_why=Pruned(why) if why in set(Pruned) else None)  # type: ignore[arg-type]


def _chain(db: sqlite3.Connection, box: str) -> Chain | None:
    row = db.execute(f"{_CHAIN} WHERE box = ?", (box,)).fetchone()
    return chain_of(row) if row else None


def chain_values(chain: Chain) -> tuple[object, ...]:
    return tuple(getattr(chain, name) or "" if name == "pruned_why" else getattr(chain, name) for name in COLUMNS)


def _prune(db: sqlite3.Connection, before: float, most: int) -> int:
    """Remove one batch of chains and return how many. Chains that are too old go first, so that they do not count
    against their owner."""
    now = time.time()
    why, limit = Pruned.AGE, now - before
    removed = [box for (box,) in db.execute(_AGED, (min(before, now), PRUNE_BATCH))]
    if not removed:
        why, limit = Pruned.ROWS, float(most)
        for owner, total in db.execute(_CROWDED, (most,)).fetchall():
            oldest = db.execute(_OLDEST, (owner, now, PRUNE_BATCH - len(removed)))
            removed += oldest_beyond((EndedChain(*row) for row in oldest), int(total), most)
    for box in removed:
        db.execute("DELETE FROM receipts WHERE box = ?", (box,))
        db.execute(_MARK, (now, why, limit, box))
    db.execute("DELETE FROM chains WHERE pruned_at > 0 AND pruned_at < ?", (now - HEADS_KEPT_SECONDS,))
    return len(removed)
