"""The warm pool: boxes of a profile that wait ready, claimed in one compare-and-set, refilled with care.

A box of the pool belongs to nobody (`POOL_OWNER`) and has run nothing but its own health check, so whoever claims it
gets a fresh box. It is never given back. Failures slow the refill down, and many in a row stop it for a while.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from hutch.errors import Conflict, HutchError
from hutch.keeper.access.callers import keeper_context
from hutch.keeper.boxes.clocks import orphan_grace, push_clocks
from hutch.keeper.boxes.live import Live
from hutch.logs import log
from hutch.model.boxes import Lease
from hutch.model.spec import Spec
from hutch.model.state import State
from hutch.policy import rights

if TYPE_CHECKING:
    from hutch.keeper.keeper import Keeper

FIRST_DELAY = 0.5
LONGEST_DELAY = 60.0
BREAKER = 5
"""Failures in a row after which nothing is tried for `LONGEST_DELAY`."""

Make = Callable[[Spec], Awaitable[Live]]


class Pool:
    """One queue of ready boxes for each profile that the configuration names."""

    def __init__(self, sizes: dict[str, int], make: Make) -> None:
        self._sizes = {profile: size for profile, size in sizes.items() if size}
        self._make = make
        self._ready: dict[str, list[Live]] = {profile: [] for profile in self._sizes}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.claims: Counter[str] = Counter(dict.fromkeys(self._sizes, 0))
        self.misses: Counter[str] = Counter(dict.fromkeys(self._sizes, 0))
        """Creations that a ready box could serve, and those that found none ready, by profile."""
        self._failures: dict[str, int] = dict.fromkeys(self._sizes, 0)
        self._not_before: dict[str, float] = dict.fromkeys(self._sizes, 0.0)

    def start(self) -> None:
        for profile in self._sizes:
            self._refill(profile)

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def next(self, spec: Spec, default_profile: str) -> Live | None:
        """The ready box that `claim` would give now."""
        ready = self._ready.get(self._profile(spec, default_profile))
        return ready[0] if ready else None

    def claim(self, spec: Spec, default_profile: str) -> Live | None:
        """A ready box for exactly this spec, or None. It is the caller's alone: it was taken from the queue."""
        profile = self._profile(spec, default_profile)
        if profile not in self._ready:
            return None
        live = self._ready[profile].pop(0) if self._ready[profile] else None
        (self.misses if live is None else self.claims)[profile] += 1
        self._refill(profile)
        return live

    def _profile(self, spec: Spec, default: str) -> str:
        """Whose boxes are like what the spec asks for; none is called ""."""
        plain = spec.but(profile=None, labels={}, name=None)
        return spec.profile or default if plain == Spec() else ""

    def forget(self, live: Live) -> None:
        """A waiting box ended by itself."""
        for ready in self._ready.values():
            if live in ready:
                ready.remove(live)

    def waiting(self) -> dict[str, int]:
        return {profile: len(ready) for profile, ready in self._ready.items()}

    def _refill(self, profile: str) -> None:
        task = self._tasks.get(profile)
        if task is None or task.done():
            self._tasks[profile] = asyncio.create_task(
                self._fill(profile), name=f"hutch-pool-{profile}", context=keeper_context()
            )

    async def _fill(self, profile: str) -> None:
        while len(self._ready[profile]) < self._sizes[profile]:
            await asyncio.sleep(max(0.0, self._not_before[profile] - time.monotonic()))
            try:
                self._ready[profile].append(await self._make(Spec(profile=profile)))
                self._failures[profile] = 0
            except HutchError as error:
                self._failures[profile] += 1
                failures = self._failures[profile]
                delay = LONGEST_DELAY if failures >= BREAKER else min(LONGEST_DELAY, FIRST_DELAY * 2**failures)
                self._not_before[profile] = time.monotonic() + delay
                log("pool").warning("refill failed", profile=profile, failures=failures, wait=delay, error=str(error))


async def claim(keeper: "Keeper", spec: Spec, lease: Lease, owner: str, key: str) -> Live | None:
    """A ready box for exactly this spec, now the owner's; None if there is none, or it broke while it waited."""
    if (first := keeper.pool.next(spec, keeper.config.profile)) is not None:
        given = first.record.spec
        if rights.within(given, keeper.config.resolve_profile(given.profile), rights.current()) is not given:
            return None  # it has more than this caller may have
        await keeper.capacity.wait_for_quota(owner, first.record.spec.limits)
    live = keeper.pool.claim(spec, keeper.config.profile)
    if live is None:
        return None
    try:
        with keeper.capacity.reserve_for(live.record.id, owner, live.record.spec):
            return live if await give(keeper, live, spec, lease, owner, key) else None
    except Conflict:  # its name or key was given to another meanwhile, and a box of the pool is never given back
        await keeper.teardown.destroy(live, "its claim failed")
        raise


async def give(keeper: "Keeper", live: Live, spec: Spec, lease: Lease, owner: str, key: str) -> bool:
    """False: the box has ended, or is broken and ends now."""
    now = time.time()
    grace = orphan_grace(keeper.config, live.record.spec, key)
    # The ttl is counted from now, and the box itself counts from its birth.
    if live.record.spec.ttl_sec or grace != live.record.grace_sec:
        try:
            await push_clocks(live.running, live.record.but(created_at=now, grace_sec=grace))
        except HutchError as error:
            await keeper.teardown.destroy(live, f"broken in the pool: {error.message}")
            return False
    async with live.state_lock:
        if live.record.state is not State.RUNNING:
            return False
        given = live.record.spec.but(labels=live.record.spec.labels | spec.labels, name=spec.name or "")
        await keeper.states.update(
            live.record, into=live, kind="claimed", reason="from the pool", owner=owner, lease=lease,
            idempotency_key=key, spec=given, labels=given.labels, created_at=now, used_at=now, epoch=2,
            grace_sec=grace,
        )  # fmt: skip
    live.last_used = time.monotonic()
    await keeper.skill_mounts.on_claimed(live)
    return True
