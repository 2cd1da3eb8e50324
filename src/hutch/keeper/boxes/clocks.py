"""The clocks of all boxes in one task: leases of live handles are renewed, idle boxes end, old boxes end."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

from hutch.config import Config
from hutch.keeper.access.callers import keeper_context
from hutch.keeper.access.leases import renewal_is_due
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.records import SCOPE_KEY, BoxRecord
from hutch.logs import log
from hutch.model.results import JobState
from hutch.model.spec import EffectiveSpec
from hutch.model.state import State
from hutch.providers.base import Instance, Provider

GRACE_SECONDS = 30.0
"""How long past its ttl a box may finish the operations that were running when it ended (lesson 6)."""


LONGEST_GRACE_SECONDS = 86400.0


def orphan_grace(config: Config, spec: EffectiveSpec, key: str) -> float:
    """How long a box lives without any keeper: as long as the configuration says.

    Where it says nothing, a conversation's box waits as long as it may be idle, at most a day: its program may be
    restarted, in good order or not, and the conversation goes on.
    """
    configured = config.orphan_grace_sec
    if not key.startswith(SCOPE_KEY) or config.origin("orphan_grace_sec") != "default":
        return configured
    return max(configured, min(spec.idle_timeout_sec or LONGEST_GRACE_SECONDS, LONGEST_GRACE_SECONDS))


def own_ttl(spec: EffectiveSpec, created_at: float) -> float:
    """Seconds from now to the end of a box by its own clock; 0: never. The keeper's grace comes before."""
    if not spec.ttl_sec:
        return 0.0
    return max(0.0, created_at + spec.ttl_sec - time.time()) + GRACE_SECONDS


async def push_clocks(instance: Instance, record: BoxRecord) -> None:
    """The box's own clocks become those of its record."""
    await instance.set_clocks(
        orphan_grace_sec=record.grace_sec or None, ttl_sec=own_ttl(record.spec, record.created_at)
    )


async def attach_with_clocks(provider: Provider, record: BoxRecord) -> Instance:
    """The box again, with the clocks of the keeper that now has it; raises what `Provider.attach` does."""
    instance = await provider.attach(record.instance, record.spec)
    try:
        await push_clocks(instance, record)
    except BaseException:
        await instance.close()
        raise
    return instance


TICK_SECONDS = 1.0
WARNING_SECONDS = 60.0
UP = (State.RUNNING, State.PAUSED)
"""Only such boxes have a clock: a stopped one keeps its files until somebody ends it."""

End = Callable[[Live, str, Callable[[Live], bool]], Awaitable[None]]
"""Which box, why, and what would still spare it: somebody may come until its end has begun."""
Warn = Callable[[Live, str], Awaitable[None]]
Renew = Callable[[Live], Awaitable[None]]


class Clocks:
    """Looks at every box once a second; knows when a box should end, not how."""

    def __init__(
        self, boxes: Callable[[], Iterable[Live]], end: End, warn: Warn, renew: Renew, lease_sec: float
    ) -> None:
        self._lease_sec = lease_sec
        self._boxes = boxes
        self._end = end
        self._warn = warn
        self._renew = renew
        self._warned: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="hutch-clocks", context=keeper_context())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        # A cancellation that comes into a write which then fails is lost to its error (`whole`).
        while self._task is not None:
            await asyncio.sleep(TICK_SECONDS)
            for live in list(self._boxes()):
                try:
                    await self.check(live, time.time())
                except Exception as error:  # one box's trouble must not stop the others' clocks (lesson 12)
                    log("clocks").warning("clock failed", box=live.record.id, error=str(error) or repr(error))

    async def check(self, live: Live, now: float) -> None:
        """What the clocks say of one box at `now` (Unix time)."""
        record = live.record
        if record.state not in UP:
            return
        await self._trouble(live)
        lease = record.lease
        if lease is not None and live.held and renewal_is_due(lease, now, self._lease_sec):
            await self._renew(live)
        if live.record.spec.ttl_sec and await self._ttl(live, now):
            return
        if not _idle(live, now):
            return
        if await self._works(live):
            live.last_used = time.monotonic()
            return
        await self._end(live, f"idle for {record.spec.idle_timeout_sec:g} s", lambda live: not _idle(live, now))

    async def _trouble(self, live: Live) -> None:
        trouble = live.instance.trouble() if live.instance is not None else ""
        if trouble and trouble != live.trouble:
            await self._warn(live, trouble)
        live.trouble = trouble

    async def _ttl(self, live: Live, now: float) -> bool:
        left, ttl = _left(live, now), live.record.spec.ttl_sec
        if left > 0:
            if left < WARNING_SECONDS and live.record.id not in self._warned:
                self._warned.add(live.record.id)
                await self._warn(live, f"ends in {left:.0f} s: its time to live of {ttl:g} s")
            return False
        if not _outlived(live, now):
            return False
        self._warned.discard(live.record.id)
        await self._end(live, f"lived its time of {ttl:g} s", lambda live: not _outlived(live, now))
        return True

    async def _works(self, live: Live) -> bool:
        """A running job is work, attached or not (B8)."""
        if live.instance is None or live.record.state is State.PAUSED:
            return False
        return any(job.state is JobState.RUNNING for job in await live.instance.jobs())


def _idle(live: Live, now: float) -> bool:
    """Nobody works with the box or holds it, and that for as long as it may last."""
    limit = live.record.spec.idle_timeout_sec
    if not limit or live.in_use(now):
        return False
    return live.record.state in UP and time.monotonic() - live.last_used > limit


def _outlived(live: Live, now: float) -> bool:
    """Its time is over; operations in flight have had their grace."""
    left = _left(live, now)
    return live.record.state in UP and left <= 0 and (not live.pins or -left >= GRACE_SECONDS)


def _left(live: Live, now: float) -> float:
    return live.record.created_at + live.record.spec.ttl_sec - now
