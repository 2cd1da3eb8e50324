"""The warm pool: boxes of a profile that wait ready, are claimed in one compare-and-set, and are refilled with care.

A pool box belongs to nobody (`POOL_OWNER`) and has run nothing but its own health check, so whoever claims it gets a
fresh box. It is never given back. Failures slow the refill down, and many in a row stop it for a while.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from hutch.config import Config
from hutch.errors import Conflict, HutchError
from hutch.keeper.access.callers import keeper_context
from hutch.keeper.boxes.clocks import orphan_grace, push_clocks
from hutch.keeper.boxes.destroy import Teardown
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.states import States
from hutch.keeper.capacity import Capacity
from hutch.keeper.skills.mounts import SkillMounts
from hutch.logs import log
from hutch.model.boxes import EventCause, Lease, State
from hutch.model.spec import Spec
from hutch.policy import rights

REFILL_DELAY = 0.02
"""Seconds before a claimed box is replaced while others wait, so that its claimer has the processors first."""
FIRST_DELAY = 0.5
LONGEST_DELAY = 60.0
MAX_FAILURES = 5
"""Failures in a row after which nothing is tried for `LONGEST_DELAY`."""

CreateBox = Callable[[Spec], Awaitable[Live]]


class Pool:
    """One queue of ready boxes for each profile that the configuration names."""

    def __init__(self, sizes: dict[str, int], create: CreateBox) -> None:
        self._sizes = {profile: size for profile, size in sizes.items() if size}
        self._create = create
        self._ready: dict[str, list[Live]] = {profile: [] for profile in self._sizes}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.claims: Counter[str] = Counter(dict.fromkeys(self._sizes, 0))
        """Creations by profile that got a ready box."""
        self.misses: Counter[str] = Counter(dict.fromkeys(self._sizes, 0))
        """Creations by profile that found no box ready."""
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

    def peek(self, spec: Spec, default_profile: str) -> Live | None:
        """Return the ready box that `pop` would give now."""
        ready = self._ready.get(self._profile(spec, default_profile))
        return ready[0] if ready else None

    def pop(self, spec: Spec, default_profile: str) -> Live | None:
        """Take a ready box for exactly this spec out of its queue, or return None."""
        profile = self._profile(spec, default_profile)
        if profile not in self._ready:
            return None
        live = self._ready[profile].pop(0) if self._ready[profile] else None
        (self.misses if live is None else self.claims)[profile] += 1
        self._refill(profile)
        return live

    def _profile(self, spec: Spec, default: str) -> str:
        """Return the profile whose pool boxes fit the spec; "" if none do."""
        plain = spec.but(profile=None, labels={}, name=None)
        return spec.profile or default if plain == Spec() else ""

    def forget(self, live: Live) -> None:
        """Remove a waiting box that has ended by itself."""
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
            delay = REFILL_DELAY if self._ready[profile] else 0.0
            await asyncio.sleep(max(delay, self._not_before[profile] - time.monotonic()))
            try:
                self._ready[profile].append(await self._create(Spec(profile=profile)))
                self._failures[profile] = 0
            except HutchError as error:
                self._failures[profile] += 1
                failures = self._failures[profile]
                wait = LONGEST_DELAY if failures >= MAX_FAILURES else min(LONGEST_DELAY, FIRST_DELAY * 2**failures)
                self._not_before[profile] = time.monotonic() + wait
                log("pool").warning("refill failed", profile=profile, failures=failures, wait=wait, error=str(error))


class PoolClaims:
    """Gives pool boxes to owners: a box gets its owner, lease, name and clocks in one compare-and-set."""

    def __init__(
        self, config: Config, pool: Pool, capacity: Capacity, states: States, teardown: Teardown, skills: SkillMounts
    ) -> None:
        self._config = config
        self._pool = pool
        self._capacity = capacity
        self._states = states
        self._teardown = teardown
        self._skills = skills

    async def claim(self, spec: Spec, lease: Lease, owner: str, key: str) -> Live | None:
        """Return a ready box for exactly this spec that is now the owner's, or None if there is no usable one."""
        if (first := self._pool.peek(spec, self._config.profile)) is not None:
            given = first.record.spec
            if rights.within(given, self._config.resolve_profile(given.profile), rights.current()) is not given:
                return None  # The pool box has more than this caller may have.
            await self._capacity.wait_for_quota(owner, first.record.spec.limits)
        live = self._pool.pop(spec, self._config.profile)
        if live is None:
            return None
        try:
            with self._capacity.reserve_for(live.record.id, owner, live.record.spec):
                return live if await self.give(live, spec, lease, owner, key) else None
        except Conflict:  # Another box got the name or key meanwhile, and a pool box is never given back.
            await self._teardown.destroy(live, "its claim failed", EventCause.OTHER)
            raise

    async def give(self, live: Live, spec: Spec, lease: Lease, owner: str, key: str) -> bool:
        """Make the box the owner's. False means that the box has ended, or was broken and is destroyed."""
        now = time.time()
        grace = orphan_grace(self._config, live.record.spec, key)
        try:
            await live.running.assign(owner=owner, keeper=live.record.keeper)
            # The ttl counts from now, but the box's own clock counts from its creation.
            if live.record.spec.ttl_sec or grace != live.record.grace_sec:
                await push_clocks(live.running, live.record.but(created_at=now, grace_sec=grace))
        except HutchError as error:
            await self._teardown.destroy(live, f"broken in the pool: {error.message}", EventCause.OTHER)
            return False
        async with live.state_lock:
            if live.record.state is not State.RUNNING:
                return False
            given = live.record.spec.but(labels=live.record.spec.labels | spec.labels, name=spec.name or "")
            await self._states.update(
                live.record, into=live, kind="claimed", reason="from the pool", owner=owner, lease=lease,
                idempotency_key=key, spec=given, labels=given.labels, created_at=now, used_at=now, epoch=2,
                grace_sec=grace,
            )  # fmt: skip
        live.last_used = time.monotonic()
        await self._skills.on_claimed(live)
        return True
