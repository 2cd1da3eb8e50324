"""Room for one more box: the keeper's own limit, the owner's quota, and the queue of those who wait for it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import NamedTuple

from hutch.config import Config
from hutch.errors import QuotaExceeded
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.records import POOL_OWNER
from hutch.keeper.store.store import Store
from hutch.model.ids import BoxId
from hutch.model.limits import Limits
from hutch.model.spec import EffectiveSpec
from hutch.policy.quotas import Quota, Shortage, shortage


class Counted(NamedTuple):
    """What is known of a box before it has a record."""

    owner: str
    spec: EffectiveSpec


class Census:
    """What the store was asked may be out of date when its answer is there; what this keeper has and makes never is.
    So the answers here hold until the next `await`, and whoever decides by one must act before that."""

    def __init__(self, store: Store, boxes: dict[BoxId, Live]) -> None:
        """`boxes` is the keeper's own dictionary."""
        self._store = store
        self._boxes = boxes
        self._coming: dict[BoxId, Counted] = {}

    @contextmanager
    def expecting(self, box_id: BoxId, owner: str, spec: EffectiveSpec) -> Iterator[None]:
        """Until its record is written, which counts from then on."""
        self._coming[box_id] = Counted(owner, spec)
        try:
            yield
        finally:
            del self._coming[box_id]

    async def all(self) -> dict[BoxId, Counted]:
        """Of every keeper on the store."""
        recorded = await self._store.all()
        ours = (live.record for live in self._boxes.values())
        return {record.id: Counted(record.owner, record.spec) for record in (*recorded, *ours)} | self._coming

    def size(self) -> int:
        """Of this keeper alone."""
        return len(self._boxes) + len(self._coming.keys() - self._boxes.keys())


_SUMMED = ("cpus", "memory_mb", "disk_mb")
"""What a quota counts of each box."""


class Room:
    """Counts live things only: boxes that exist and creations that are under way (lesson 8)."""

    def __init__(self, config: Config, census: Census, *, visiting: bool) -> None:
        """`visiting`: all boxes there are count for the keeper's own limit, because none stays in a visitor's hands."""
        self._config = config
        self._census = census
        self._visiting = visiting
        self._freed = asyncio.Event()
        """Of the next box that goes. Each has its own, so that nobody can take it from those who wait for it."""

    @asynccontextmanager
    async def reserve(self, box_id: BoxId, owner: str, spec: EffectiveSpec) -> AsyncIterator[None]:
        """Room for a box until its record is written. Waits `queue_sec` at the limit, then QuotaExceeded."""
        await self._wait(owner, lambda: self._lack(owner, spec.limits))
        with self._census.expecting(box_id, owner, spec):
            try:
                yield
            except BaseException:
                self.freed()  # it will not be
                raise

    async def await_share(self, owner: str, limits: Limits) -> None:
        """Room in the owner's quota for a box that is there already, of the pool. Holds until the next `await`."""
        await self._wait(owner, lambda: self._short(owner, limits))

    def giving(self, box_id: BoxId, owner: str, spec: EffectiveSpec) -> AbstractContextManager[None]:
        """A box of the pool counts as the owner's, who is about to get it."""
        return self._census.expecting(box_id, owner, spec)

    @asynccontextmanager
    async def growing(self, box_id: BoxId, owner: str, now: Limits, spec: EffectiveSpec) -> AsyncIterator[None]:
        """Room in the owner's quota for a live box with other limits, until they are on record. QuotaExceeded at once:
        the box works, so nobody has to wait for it. What shrinks needs no room, also past a quota that was lowered."""
        shrinking = (what for what in _SUMMED if getattr(spec.limits, what) <= getattr(now, what))
        quota = self._quota(owner).but(boxes=0, **dict.fromkeys(shrinking, 0))
        if quota != Quota():
            boxes = await self._census.all()
            boxes.pop(box_id, None)
            if lack := _over(quota, boxes, owner, spec.limits):
                raise _refusal(lack, owner)
        with self._census.expecting(box_id, owner, spec):
            yield

    async def _wait(self, owner: str, look: Callable[[], Awaitable[Shortage | None]]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.queue_sec
        freed = self._freed  # before the look: what goes while we look wakes us
        while (lack := await look()) is not None:
            left = deadline - loop.time()
            if left <= 0:
                raise _refusal(lack, owner)
            try:
                async with asyncio.timeout(left):
                    await freed.wait()
            except TimeoutError:
                continue
            freed = self._freed

    def freed(self) -> None:
        """A box is gone: whoever waits may look again."""
        self._freed.set()
        self._freed = asyncio.Event()

    async def _lack(self, owner: str, limits: Limits) -> Shortage | None:
        """Holds until the next `await`, as what the census says. Where there is no quota, nothing is waited for."""
        quota, limit = self._quota(owner), self._config.max_boxes
        if quota == Quota() and not (limit and self._visiting):
            return self._full(limit, self._census.size()) if limit else None
        boxes = await self._census.all()
        if limit and (full := self._full(limit, len(boxes) if self._visiting else self._census.size())):
            return full
        return _over(quota, boxes, owner, limits)

    async def _short(self, owner: str, limits: Limits) -> Shortage | None:
        quota = self._quota(owner)
        return _over(quota, await self._census.all(), owner, limits) if quota != Quota() else None

    def _quota(self, owner: str) -> Quota:
        if owner == POOL_OWNER:
            return Quota()  # its boxes are nobody's yet, and count when somebody gets them
        return self._config.quotas.get(owner) or self._config.quotas.get("*") or Quota()

    def _full(self, limit: int, count: int) -> Shortage | None:
        return Shortage(what="boxes", limit=limit, used=count, asked=1) if count >= limit else None


def _over(quota: Quota, boxes: Mapping[BoxId, Counted], owner: str, limits: Limits) -> Shortage | None:
    return shortage(quota, [box.spec.limits for box in boxes.values() if box.owner == owner], limits)


def _refusal(lack: Shortage, owner: str) -> QuotaExceeded:
    return QuotaExceeded(
        f"no room for that box of {owner}: {lack.what} {lack.used:g} of {lack.limit:g} are in use",
        op="create",
        retry_after=5.0,
        details={"what": lack.what, "limit": lack.limit, "used": lack.used, "asked": lack.asked},
        remedy="destroy a box, or raise max_boxes or the owner's quota",
    )
