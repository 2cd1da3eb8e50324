"""Receipts in PostgreSQL, in the database that the keepers share."""

import secrets
import time
from collections.abc import Sequence
from typing import cast

from hutch.keeper.receipts.chain import Row, link
from hutch.keeper.receipts.ledger import HEADS_KEPT_SECONDS, PRUNE_BATCH, EndedChain, by_box, oldest_beyond
from hutch.keeper.receipts.ledger_sqlite import COLUMNS, chain_of, chain_values
from hutch.keeper.store.postgres_connections import Connection, Connections
from hutch.model.receipts import Chain, Pruned, Receipt

_CHAIN = f"SELECT {', '.join(COLUMNS)} FROM hutch.chains"
_NEW = ", ".join(f"{name} = excluded.{name}" for name in (*COLUMNS[1:], "batch"))
_KEEP = (
    f"INSERT INTO hutch.chains ({', '.join(COLUMNS)}, batch) VALUES ({', '.join(['%s'] * (len(COLUMNS) + 1))})"
    f" ON CONFLICT (box) DO UPDATE SET {_NEW}"
)
_ADD = "INSERT INTO hutch.receipts (box, seq, hash, body) VALUES (%s, %s, %s, %s)"
_ROWS = "SELECT seq, hash, body FROM hutch.receipts WHERE box = %s AND seq > %s ORDER BY seq LIMIT %s"
_HELD = "SELECT coalesce(sum(count), 0) FROM hutch.chains WHERE owner = %s AND (pruned_at = 0 OR pruned_at >= %s)"
_AGED = "SELECT box FROM hutch.chains WHERE pruned_at = 0 AND ended_at > 0 AND ended_at < %s ORDER BY ended_at LIMIT %s"
_CROWDED = "SELECT owner, sum(count) FROM hutch.chains WHERE pruned_at = 0 GROUP BY owner HAVING sum(count) > %s"
_OLDEST = (
    "SELECT box, count FROM hutch.chains WHERE pruned_at = 0 AND owner = %s AND ended_at > 0 AND ended_at <= %s"
    " ORDER BY ended_at LIMIT %s"
)
_MARK = "UPDATE hutch.chains SET pruned_at = %s, pruned_why = %s, pruned_limit = %s WHERE box = %s"
_PAGE = f'{_CHAIN} WHERE box COLLATE "C" > %s AND (%s::text IS NULL OR owner = %s) ORDER BY box COLLATE "C" LIMIT %s'


class PostgresLedger:
    """The `Ledger` protocol over the store's connections; the store closes them."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def append(self, drafts: Sequence[Receipt]) -> None:
        batch = secrets.token_hex(8)
        boxes = by_box(drafts)

        def work(db: Connection, retried: bool) -> None:
            with db.transaction():
                if retried and _committed(db, boxes[0][0], batch):
                    return  # the first attempt was committed, and its answer lost
                for box, each in boxes:
                    # A slow keeper and the one that took its box over may both write; the lock puts them in order.
                    db.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (box,))
                    chain, rows = link(_chain(db, box), each)
                    db.cursor().executemany(_ADD, [(box, *row) for row in rows])
                    db.execute(_KEEP.encode(), (*chain_values(chain), batch))

        await self._connections.run(work)

    async def chain(self, box: str) -> Chain | None:
        return await self._connections.run(lambda db, _: _chain(db, box))

    async def chains(self, owner: str | None, after: str, limit: int) -> list[Chain]:
        values = (after, owner, owner, limit)
        rows = await self._connections.run(lambda db, _: db.execute(_PAGE.encode(), values).fetchall())
        return [chain_of(row) for row in rows]

    async def rows(self, box: str, after: int, limit: int) -> list[Row]:
        rows = await self._connections.run(lambda db, _: db.execute(_ROWS, (box, after, limit)).fetchall())
        return [Row(*row) for row in rows]  # type: ignore[arg-type]

    async def count_held(self, owner: str, since: float) -> int:
        rows = await self._connections.run(lambda db, _: db.execute(_HELD, (owner, since)).fetchall())
        return int(cast(int, rows[0][0]))

    async def prune(self, before: float, most: int) -> int:
        gone = 0
        while some := await self._connections.run(lambda db, _: _prune(db, before, most)):
            gone += some
        return gone

    async def close(self) -> None:
        return None


def _chain(db: Connection, box: str) -> Chain | None:
    row = db.execute(f"{_CHAIN} WHERE box = %s".encode(), (box,)).fetchone()
    return chain_of(row) if row else None


def _committed(db: Connection, box: str, batch: str) -> bool:
    return db.execute("SELECT 1 FROM hutch.chains WHERE box = %s AND batch = %s", (box, batch)).fetchone() is not None


def _prune(db: Connection, before: float, most: int) -> int:
    """Remove one batch of chains, in the order of `ledger_sqlite`; return how many."""
    now = time.time()
    why, limit = Pruned.AGE, now - before
    with db.transaction():
        removed = [str(box) for (box,) in db.execute(_AGED, (min(before, now), PRUNE_BATCH))]
        if not removed:
            why, limit = Pruned.ROWS, float(most)
            for owner, total in db.execute(_CROWDED, (most,)).fetchall():
                oldest = db.execute(_OLDEST, (owner, now, PRUNE_BATCH - len(removed)))
                ended = (EndedChain(*row) for row in oldest)  # type: ignore[arg-type]
                removed += oldest_beyond(ended, int(cast(int, total)), most)
        for box in removed:
            db.execute("DELETE FROM hutch.receipts WHERE box = %s", (box,))
            db.execute(_MARK, (now, str(why), limit, box))
        db.execute("DELETE FROM hutch.chains WHERE pruned_at > 0 AND pruned_at < %s", (now - HEADS_KEPT_SECONDS,))
    return len(removed)
