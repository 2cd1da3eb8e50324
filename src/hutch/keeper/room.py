"""Room for one more box: the keeper's own limit, the owner's quota, and the queue of those who wait for it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from hutch.config import Config
from hutch.errors import QuotaExceeded
from hutch.keeper.records import BoxRecord
from hutch.keeper.store import Store
from hutch.model.limits import Limits
from hutch.policy.quotas import Quota, Shortage, shortage


class Room:
    """Counts live things only: boxes that exist and creations that are under way (lesson 8)."""

    def __init__(self, config: Config, store: Store, live: Callable[[], Iterable[BoxRecord]] | None) -> None:
        """`live` tells the keeper's own boxes; without it all there are count: none stays in a visitor's hands."""
        self._config = config
        self._store = store
        self._live = live
        self._making: list[tuple[str, Limits]] = []
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def reserve(self, owner: str, limits: Limits) -> AsyncIterator[None]:
        """Room for a box until its record is written. Waits `queue_sec` at the limit, then QuotaExceeded."""
        mine = (owner, limits)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.queue_sec
        while (lack := await self._lack(owner, limits)) is not None:
            self._freed.clear()
            left = deadline - loop.time()
            if left <= 0:
                raise _refusal(lack, owner)
            try:
                async with asyncio.timeout(left):
                    await self._freed.wait()
            except TimeoutError:
                continue
        self._making.append(mine)
        try:
            yield
        finally:
            self._making.remove(mine)

    def freed(self) -> None:
        """A box is gone: whoever waits may look again."""
        self._freed.set()

    async def _lack(self, owner: str, limits: Limits) -> Shortage | None:
        limit = self._config.max_boxes
        live = self._live() if self._live is not None else await self._store.all()
        count = sum(1 for _ in live) + len(self._making)
        if limit and count >= limit:
            return Shortage(what="boxes", limit=limit, used=count, asked=1)
        quota = self._config.quotas.get(owner) or self._config.quotas.get("*")
        if quota is None or quota == Quota():
            return None
        # Other keepers on the same store may hold boxes of this owner too.
        others = [record.spec.limits for record in await self._store.all() if record.owner == owner]
        making = [wanted for who, wanted in self._making if who == owner]
        return shortage(quota, [*others, *making], limits)


def _refusal(lack: Shortage, owner: str) -> QuotaExceeded:
    return QuotaExceeded(
        f"no room for another box of {owner}: {lack.what} {lack.used:g} of {lack.limit:g} are in use",
        op="create",
        retry_after=5.0,
        details={"what": lack.what, "limit": lack.limit, "used": lack.used, "asked": lack.asked},
        remedy="destroy a box, or raise max_boxes or the owner's quota",
    )
