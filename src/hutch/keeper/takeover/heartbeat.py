"""Liveness of keepers on several machines: each renews a row in PostgreSQL, and only the server's clock counts.

Keepers of one place (a state directory) see each other's locks, so there a killed keeper is dead at once. A keeper of
another place is dead when its row is too old; the keeper that finds this raises the row's epoch, so that its owner, if
it was only slow, cannot renew it unnoticed. That owner then claims its name again, and checks box by box what is still
its own before it touches one that others could have taken.
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
from hutch.keeper.takeover.liveness import Claimant, LockLiveness
from hutch.logs import log

DEAD_AFTER_SECONDS = 30.0
BEATS = 6
"""Renewals within the time after which a keeper counts as dead."""
LAPSE = 0.8
"""The part of that time after which a keeper stops by itself: clocks of two machines differ a little in speed."""

_CLAIM = (
    "INSERT INTO hutch.keepers (id, place, url, epoch, beat_at) VALUES (%s, %s, %s, 1, now()) ON CONFLICT (id)"
    " DO UPDATE SET epoch = keepers.epoch + 1, url = excluded.url, beat_at = now() RETURNING epoch"
)
_BEAT = "UPDATE hutch.keepers SET beat_at = now() WHERE id = %s AND epoch = %s"
_LIVES = "SELECT place, beat_at >= now() - make_interval(secs => %s) FROM hutch.keepers WHERE id = %s"
_DECLARE_DEAD = (
    "UPDATE hutch.keepers SET epoch = epoch + 1 WHERE id = %s AND beat_at < now() - make_interval(secs => %s)"
)
_ADDRESS = "SELECT url FROM hutch.keepers WHERE id = %s"
_WITHDRAW = "DELETE FROM hutch.keepers WHERE id = %s"
_SWEEP = (
    "DELETE FROM hutch.keepers WHERE beat_at < now() - make_interval(secs => %s)"
    " AND NOT EXISTS (SELECT FROM hutch.boxes WHERE keeper = keepers.id)"
)


class Heartbeat:
    """Liveness of keepers that share a database."""

    def __init__(
        self,
        connections: Connections,
        directories: Sequence[Path],
        *,
        url: str = "",
        dead_after: float = DEAD_AFTER_SECONDS,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.locks = LockLiveness(directories)
        self._state_dir = directories[0]
        self.place = _place(self._state_dir)
        self._connections = connections
        self._url = url
        """Where clients reach this keeper's server; empty if it has none that other machines can reach."""
        self._dead_after = dead_after
        self._clock = clock or _now
        self._claimant: Claimant | None = None
        self._epoch = 0
        self._renewed_at = 0.0
        """When the last successful renewal began."""
        self._task: asyncio.Task[None] | None = None

    async def claim(self, claimant: Claimant) -> None:
        """Take the lock before the row: a row of this place without a held lock counts as a dead keeper's."""
        await self.locks.claim(claimant)
        self.place = _create_place(self._state_dir)
        self._claimant = claimant
        self._renewed_at = await self._write_claim(claimant)
        self._task = asyncio.create_task(self._beat_on(claimant), name="hutch-heartbeat")

    async def alive(self, keeper: str) -> bool:
        if await self.locks.alive(keeper):
            return True

        def check(db: Connection, _: bool) -> bool:
            row = db.execute(_LIVES, (self._dead_after, keeper)).fetchone()
            if row is None or row[0] == self.place:
                return False
            # One statement checks the age and raises the epoch: a renewal comes before it, or fails after it.
            return bool(row[1]) or not db.execute(_DECLARE_DEAD, (keeper, self._dead_after)).rowcount

        return await self._connections.run(check)

    async def address(self, keeper: str) -> str:
        row = await self._connections.run(lambda db, _: db.execute(_ADDRESS, (keeper,)).fetchone())
        return str(row[0]) if row else ""

    def lapsed(self) -> bool:
        return self._clock() - self._renewed_at > self._dead_after * LAPSE

    async def beat(self) -> None:
        """Renew the claim. If it was lost, or an answer or too much time, first check which boxes are still ours."""
        claimant = self._claimant
        if claimant is None:
            return
        keeper, epoch, begun = claimant.id, self._epoch, self._clock()
        renewed = await self._connections.run(lambda db, _: bool(db.execute(_BEAT, (keeper, epoch)).rowcount))
        if renewed and not self._connections.answer_lost and not self.lapsed():
            self._renewed_at = begun
            return
        if not renewed:
            log("keeper").warning("other keepers took this one for dead", keeper=keeper)
            begun = await self._write_claim(claimant)
        self._connections.answer_lost = False
        try:
            await claimant.confirm()
        except HutchError:
            self._connections.answer_lost = True
            raise
        self._renewed_at = begun

    async def sweep(self) -> None:
        await self.locks.sweep()
        await self._connections.run(lambda db, _: db.execute(_SWEEP, (self._dead_after,)).rowcount)

    async def release(self) -> None:
        """Remove the row, so that others need not wait until it is too old."""
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
        claim = (claimant.id, self.place, self._url)
        row = await self._connections.run(lambda db, _: db.execute(_CLAIM, claim).fetchone())
        self._epoch = int(str(row[0])) if row else 0
        return begun

    async def _beat_on(self, claimant: Claimant) -> None:
        """Renew for ever, and after every few renewals take over boxes of dead keepers."""
        beats = 0
        # A cancellation during a write that then fails is replaced by its error (`run_uncancelled`).
        while self._task is not None:
            await asyncio.sleep(self._dead_after / BEATS)
            try:
                await self.beat()
                beats += 1
                if beats % BEATS == 0:
                    await claimant.adopt()
            except HutchError as error:  # the store is away: the next beat tries again, and `lapsed` holds meanwhile
                log("keeper").warning("heartbeat failed", keeper=claimant.id, error=str(error))


def _create_place(state_dir: Path) -> str:
    """Return the name of this state directory, drawn at random once.

    It survives a reboot, as persistent boxes do, and two containers of one image do not share it.
    """
    if place := _place(state_dir):
        return place
    draft = state_dir / f".place-{secrets.token_hex(6)}"
    draft.write_text(secrets.token_hex(12))
    try:
        with suppress(FileExistsError):
            os.link(draft, state_dir / "place")
    finally:
        draft.unlink()
    return _place(state_dir)


def _place(state_dir: Path) -> str:
    """Read the name of this state directory; empty before the first keeper's claim."""
    try:
        return (state_dir / "place").read_text()
    except FileNotFoundError:
        return ""


def _now() -> float:
    """Seconds on a clock that also counts while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
