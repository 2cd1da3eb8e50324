"""Who lives, on several machines: each keeper renews a row in PostgreSQL, and only the server's clock counts.

Keepers of one place (a state directory) see each other's locks, so there a killed keeper is dead at once. A keeper of
another place is dead when its row is too old; whoever finds that out raises the row's epoch, so that its owner, if it
was only slow, cannot renew it unawares. It then claims anew, and looks box by box what is still its own, before it
touches one that others could have taken.
"""

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from hutch.errors import HutchError
from hutch.keeper.store.postgres_connections import Connection, Connections
from hutch.keeper.takeover.liveness import Claimant, Locks
from hutch.logs import log

DEAD_AFTER_SECONDS = 30.0
BEATS = 6
"""So many renewals fit into the time after which a keeper counts as dead."""
LAPSE = 0.8
"""A keeper gives itself up before others do: clocks of two machines do not run at quite the same speed."""

_CLAIM = (
    "INSERT INTO hutch.keepers (id, place, epoch, beat_at) VALUES (%s, %s, 1, now())"
    " ON CONFLICT (id) DO UPDATE SET epoch = keepers.epoch + 1, beat_at = now() RETURNING epoch"
)
_BEAT = "UPDATE hutch.keepers SET beat_at = now() WHERE id = %s AND epoch = %s"
_LIVES = "SELECT place, beat_at >= now() - make_interval(secs => %s) FROM hutch.keepers WHERE id = %s"
_DECLARE_DEAD = (
    "UPDATE hutch.keepers SET epoch = epoch + 1 WHERE id = %s AND beat_at < now() - make_interval(secs => %s)"
)
_WITHDRAW = "DELETE FROM hutch.keepers WHERE id = %s"
_SWEEP = (
    "DELETE FROM hutch.keepers WHERE beat_at < now() - make_interval(secs => %s)"
    " AND NOT EXISTS (SELECT FROM hutch.boxes WHERE keeper = keepers.id)"
)


class Heartbeat:
    """Liveness for keepers that share a database."""

    def __init__(
        self,
        connections: Connections,
        homes: Sequence[Path],
        *,
        dead_after: float = DEAD_AFTER_SECONDS,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.locks = Locks(homes)
        self._home = homes[0]
        self.place = _place(self._home)
        self._connections = connections
        self._dead_after = dead_after
        self._clock = clock or _now
        self._claimant: Claimant | None = None
        self._epoch = 0
        self._beaten = 0.0
        """When the last renewal that succeeded was begun."""
        self._task: asyncio.Task[None] | None = None

    async def claim(self, claimant: Claimant) -> None:
        """The lock first: a row whose lock is free is a dead keeper's."""
        await self.locks.claim(claimant)
        self.place = _draw_place(self._home)
        self._claimant = claimant
        self._beaten = await self._write_claim(claimant)
        self._task = asyncio.create_task(self._beat_on(claimant), name="hutch-heartbeat")

    async def alive(self, keeper: str) -> bool:
        if await self.locks.alive(keeper):
            return True

        def look(db: Connection, _: bool) -> bool:
            row = db.execute(_LIVES, (self._dead_after, keeper)).fetchone()
            if row is None or row[0] == self.place:
                return False
            # Told by the same statement that takes its epoch: a renewal comes before it or fails after it.
            return bool(row[1]) or not db.execute(_DECLARE_DEAD, (keeper, self._dead_after)).rowcount

        return await self._connections.run(look)

    def lapsed(self) -> bool:
        return self._clock() - self._beaten > self._dead_after * LAPSE

    async def beat(self) -> None:
        """Renew the claim; if it was lost, or time or an answer was, see first what is still ours."""
        claimant = self._claimant
        if claimant is None:
            return
        keeper, epoch, begun = claimant.id, self._epoch, self._clock()
        kept = await self._connections.run(lambda db, _: bool(db.execute(_BEAT, (keeper, epoch)).rowcount))
        if kept and not self._connections.unsure and not self.lapsed():
            self._beaten = begun
            return
        if not kept:
            log("keeper").warning("other keepers took this one for dead", keeper=keeper)
            begun = await self._write_claim(claimant)
        self._connections.unsure = False
        try:
            await claimant.confirm()
        except HutchError:
            self._connections.unsure = True
            raise
        self._beaten = begun

    async def sweep(self) -> None:
        await self.locks.sweep()
        await self._connections.run(lambda db, _: db.execute(_SWEEP, (self._dead_after,)).rowcount)

    async def release(self) -> None:
        """The row goes, so that the others need not wait for it to age."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if self._claimant is not None:
            keeper, self._claimant = self._claimant.id, None
            try:
                await self._connections.run(lambda db, _: db.execute(_WITHDRAW, (keeper,)).rowcount)
            except HutchError as error:
                log("keeper").warning("claim not withdrawn; it ends by itself", keeper=keeper, error=str(error))
        await self.locks.release()

    async def _write_claim(self, claimant: Claimant) -> float:
        begun = self._clock()
        row = await self._connections.run(lambda db, _: db.execute(_CLAIM, (claimant.id, self.place)).fetchone())
        self._epoch = int(str(row[0])) if row else 0
        return begun

    async def _beat_on(self, claimant: Claimant) -> None:
        """Renews for ever; after every few beats looks for boxes that the dead have left."""
        beats = 0
        # A cancellation that comes into a write which then fails is lost to its error (`whole`).
        while self._task is not None:
            await asyncio.sleep(self._dead_after / BEATS)
            try:
                await self.beat()
                beats += 1
                if beats % BEATS == 0:
                    await claimant.adopt()
            except HutchError as error:  # the store is away: the next beat tries again, and `lapsed` tells meanwhile
                log("keeper").warning("heartbeat failed", keeper=claimant.id, error=str(error))


def _draw_place(home: Path) -> str:
    """The name of this state directory, drawn once: it survives a reboot, as its persistent boxes do, and two
    containers of one image do not share it."""
    if place := _place(home):
        return place
    draft = home / f".place-{secrets.token_hex(6)}"
    draft.write_text(secrets.token_hex(12))
    try:
        with suppress(FileExistsError):
            os.link(draft, home / "place")
    finally:
        draft.unlink()
    return _place(home)


def _place(home: Path) -> str:
    """Empty before the first keeper's claim."""
    try:
        return (home / "place").read_text()
    except FileNotFoundError:
        return ""


def _now() -> float:
    """Also counts the time the machine was asleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
