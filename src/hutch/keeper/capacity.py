"""Admission control: the keeper's box limit, per-owner quotas, and the queue of creations that wait for either."""

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
from hutch.policy.quotas import Quota, Shortage, quota_of, shortage

_SUMMED_LIMITS = ("cpus", "memory_mb", "disk_mb")
"""The limits of a box that count towards its owner's quota."""


class InventoryEntry(NamedTuple):
    """What is known of a box before it has a record."""

    owner: str
    spec: EffectiveSpec


class Inventory:
    """Knows which boxes exist: those on record, and those being created that have no record yet.

    An answer of the store may be out of date when it arrives; what this keeper holds and creates never is. So an
    answer is valid only until the next `await`, and a caller that decides by it must act before that.
    """

    def __init__(self, store: Store, boxes: dict[BoxId, Live]) -> None:
        """`boxes` is the keeper's own dictionary."""
        self._store = store
        self._boxes = boxes
        self._pending: dict[BoxId, InventoryEntry] = {}

    @contextmanager
    def pending(self, box_id: BoxId, owner: str, spec: EffectiveSpec) -> Iterator[None]:
        """Count a box until its record is written, which counts from then on."""
        self._pending[box_id] = InventoryEntry(owner, spec)
        try:
            yield
        finally:
            del self._pending[box_id]

    async def all(self) -> dict[BoxId, InventoryEntry]:
        """Return the boxes of every keeper on the store."""
        recorded = await self._store.all(lambda box_id: live.record if (live := self._boxes.get(box_id)) else None)
        ours = (live.record for live in self._boxes.values())
        return {record.id: InventoryEntry(record.owner, record.spec) for record in (*recorded, *ours)} | self._pending

    def count(self) -> int:
        """Count the boxes of this keeper alone."""
        return len(self._boxes) + len(self._pending.keys() - self._boxes.keys())


class Capacity:
    """Decides whether one more box may be created.

    Only live boxes and creations in progress count, so a failed boot never uses up a quota.
    """

    def __init__(self, config: Config, inventory: Inventory, *, visiting: bool) -> None:
        """A visiting keeper holds no boxes of its own, so it counts every box in the store against the limit."""
        self._config = config
        self._inventory = inventory
        self._visiting = visiting
        self._capacity_freed = asyncio.Event()
        """Set when the next box is destroyed, then replaced: each waiter keeps the event it saw before it checked."""

    @asynccontextmanager
    async def reserve(self, box_id: BoxId, owner: str, spec: EffectiveSpec) -> AsyncIterator[None]:
        """Reserve capacity for a box until its record is written.

        Raises:
            QuotaExceeded: The limit or the quota was still reached after `queue_sec` seconds.
        """
        await self._wait(owner, lambda: self._shortage(owner, spec.limits))
        with self._inventory.pending(box_id, owner, spec):
            try:
                yield
            except BaseException:
                self.notify_freed()
                raise

    async def wait_for_quota(self, owner: str, limits: Limits) -> None:
        """Wait until the owner's quota admits a pool box. The answer is valid only until the next `await`."""
        await self._wait(owner, lambda: self._quota_shortage(owner, limits))

    def reserve_for(self, box_id: BoxId, owner: str, spec: EffectiveSpec) -> AbstractContextManager[None]:
        """Count a pool box as the owner's while it is being handed over."""
        return self._inventory.pending(box_id, owner, spec)

    @asynccontextmanager
    async def reserve_growth(self, box_id: BoxId, owner: str, now: Limits, spec: EffectiveSpec) -> AsyncIterator[None]:
        """Reserve quota for a live box with other limits, until they are on record.

        A limit that shrinks needs no quota, even where the quota was lowered below what is in use.

        Raises:
            QuotaExceeded: The quota does not allow it. It is raised at once, because the box works as it is.
        """
        shrinking = (name for name in _SUMMED_LIMITS if getattr(spec.limits, name) <= getattr(now, name))
        quota = self._quota(owner).but(boxes=0, **dict.fromkeys(shrinking, 0))
        if quota != Quota():
            boxes = await self._inventory.all()
            boxes.pop(box_id, None)
            if lack := _quota_shortage(quota, boxes, owner, spec.limits):
                raise _refusal(lack, owner)
        with self._inventory.pending(box_id, owner, spec):
            yield

    def notify_freed(self) -> None:
        """Wake waiting creations after a box was destroyed or could not be created."""
        self._capacity_freed.set()
        self._capacity_freed = asyncio.Event()

    async def _wait(self, owner: str, find_shortage: Callable[[], Awaitable[Shortage | None]]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.queue_sec
        freed = self._capacity_freed  # Taken before the check, so that a box destroyed meanwhile wakes this waiter.
        while (lack := await find_shortage()) is not None:
            left = deadline - loop.time()
            if left <= 0:
                raise _refusal(lack, owner)
            try:
                async with asyncio.timeout(left):
                    await freed.wait()
            except TimeoutError:
                continue
            freed = self._capacity_freed

    async def _shortage(self, owner: str, limits: Limits) -> Shortage | None:
        """Check limit and quota. The store is asked only where one of them needs it."""
        quota, limit = self._quota(owner), self._config.max_boxes
        if quota == Quota() and not (limit and self._visiting):
            return self._limit_shortage(limit, self._inventory.count()) if limit else None
        boxes = await self._inventory.all()
        count = len(boxes) if self._visiting else self._inventory.count()
        if limit and (full := self._limit_shortage(limit, count)):
            return full
        return _quota_shortage(quota, boxes, owner, limits)

    async def _quota_shortage(self, owner: str, limits: Limits) -> Shortage | None:
        quota = self._quota(owner)
        return _quota_shortage(quota, await self._inventory.all(), owner, limits) if quota != Quota() else None

    def _quota(self, owner: str) -> Quota:
        if owner == POOL_OWNER:
            return Quota()  # A pool box has no owner yet; it counts when somebody claims it.
        return quota_of(self._config.quotas, owner)

    def _limit_shortage(self, limit: int, count: int) -> Shortage | None:
        return Shortage(what="boxes", limit=limit, used=count, asked=1) if count >= limit else None


def _quota_shortage(
    quota: Quota, boxes: Mapping[BoxId, InventoryEntry], owner: str, limits: Limits
) -> Shortage | None:  # fmt: skip
    return shortage(quota, [box.spec.limits for box in boxes.values() if box.owner == owner], limits)


def _refusal(lack: Shortage, owner: str) -> QuotaExceeded:
    return QuotaExceeded(
        f"no room for that box of {owner}: {lack.what} {lack.used:g} of {lack.limit:g} are in use",
        op="create",
        retry_after=5.0,
        details={"what": lack.what, "limit": lack.limit, "used": lack.used, "asked": lack.asked},
        remedy="destroy a box, or raise max_boxes or the owner's quota",
    )
