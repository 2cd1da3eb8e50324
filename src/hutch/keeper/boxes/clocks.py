"""The clocks of boxes: the keeper's own, which end boxes in good order, and those a box carries for itself.

A box ends itself by its own clocks where no keeper does. A keeper that lives ends it sooner, because the keeper knows
which operations are in flight.
"""

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
from hutch.model.boxes import EventCause, State
from hutch.model.results import JobState
from hutch.model.spec import EffectiveSpec, TtlAction
from hutch.providers.base import Instance, Provider

GRACE_SECONDS = 30.0
"""How long past its ttl a box may finish the operations that were running when its time ended."""
LONGEST_ORPHAN_GRACE_SECONDS = 86400.0
TICK_SECONDS = 1.0
WARNING_SECONDS = 60.0
_BOXES_AT_ONCE = 50
"""Boxes that are checked before other tasks get their turn."""
CLOCKED_STATES = (State.RUNNING, State.PAUSED)
"""Only boxes in these states have clocks: a stopped box keeps its files until somebody destroys it."""

End = Callable[[Live, str, EventCause, Callable[[Live], bool]], Awaitable[None]]
"""Ends a box with a reason and a cause. The last argument is asked again before the end begins: True spares the box."""
Warn = Callable[[Live, str], Awaitable[None]]
Renew = Callable[[Live], Awaitable[None]]


# --- the clocks a box carries itself --------------------------------------------------------------------------------


def orphan_grace(config: Config, spec: EffectiveSpec, key: str) -> float:
    """How many seconds a box lives without any keeper: as long as the configuration says.

    Where it says nothing, a conversation's box waits as long as it may be idle, at most a day: its program may be
    restarted, in good order or not, and the conversation goes on.
    """
    configured = config.orphan_grace_sec
    if not key.startswith(SCOPE_KEY) or config.origin("orphan_grace_sec") != "default":
        return configured
    longest = LONGEST_ORPHAN_GRACE_SECONDS
    return max(configured, min(spec.idle_timeout_sec or longest, longest))


def own_ttl(spec: EffectiveSpec, created_at: float) -> float:
    """Seconds from now until the box's own clock ends it, after the keeper's grace; 0 means never.

    Only a keeper can pause a box, so one that is to be paused does not end without a keeper.
    """
    if not spec.ttl_sec or spec.ttl_action is not TtlAction.DESTROY:
        return 0.0
    return max(0.0, created_at + spec.ttl_sec - time.time()) + GRACE_SECONDS


async def push_clocks(instance: Instance, record: BoxRecord) -> None:
    """Set the box's own clocks to those of its record."""
    await instance.set_clocks(
        orphan_grace_sec=record.grace_sec or None, ttl_sec=own_ttl(record.spec, record.created_at)
    )


async def attach_with_clocks(provider: Provider, record: BoxRecord) -> Instance:
    """Attach to a box and give it the clocks and the name of the keeper that now has it.

    It raises what `Provider.attach` does, and Conflict if somebody else takes the box at the same time.
    """
    instance = await provider.attach(record.instance, record.spec)
    try:
        await instance.assign(owner=record.owner, keeper=record.keeper)
        await push_clocks(instance, record)
    except BaseException:
        await instance.close()
        raise
    return instance


# --- the keeper's clocks --------------------------------------------------------------------------------------------


class Clocks:
    """Checks every box once a second in one task: it renews leases of open handles, and ends idle and old boxes.

    It knows when a box should end; the keeper's callbacks know how.
    """

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
        # The condition ends the task if a cancellation was replaced by the error of a write (`run_uncancelled`).
        while self._task is not None:
            await asyncio.sleep(TICK_SECONDS)
            for number, live in enumerate(list(self._boxes())):
                if number % _BOXES_AT_ONCE == 0:
                    await asyncio.sleep(0)  # commands must not wait until thousands of boxes have been checked
                try:
                    if self._is_due(live, time.time()):
                        await self.check(live, time.time())
                except Exception as error:  # One box's trouble must not stop the clocks of the others.
                    log("clocks").warning("clock failed", box=live.record.id, error=str(error) or repr(error))

    def _is_due(self, live: Live, now: float) -> bool:
        """Whether `check` has anything to do, which is true of few of thousands of boxes."""
        record = live.record
        if record.state not in CLOCKED_STATES:
            return False
        trouble = live.instance.trouble() if live.instance is not None else ""
        if trouble != live.trouble or record.spec.ttl_sec or _is_idle(live, now):
            return True
        lease = record.lease
        return lease is not None and live.held and renewal_is_due(lease, now, self._lease_sec)

    async def check(self, live: Live, now: float) -> None:
        """Act on what the clocks of one box say at `now` (Unix time)."""
        record = live.record
        if record.state not in CLOCKED_STATES:
            return
        await self._report_trouble(live)
        lease = record.lease
        if lease is not None and live.held and renewal_is_due(lease, now, self._lease_sec):
            await self._renew(live)
        if live.record.spec.ttl_sec and await self._check_ttl(live, now):
            return
        if not _is_idle(live, now):
            return
        if await self._has_running_job(live):
            live.last_used = time.monotonic()
            return
        reason = f"idle for {record.spec.idle_timeout_sec:g} s"
        await self._end(live, reason, EventCause.IDLE, lambda live: not _is_idle(live, now))

    async def _report_trouble(self, live: Live) -> None:
        trouble = live.instance.trouble() if live.instance is not None else ""
        if trouble and trouble != live.trouble:
            await self._warn(live, trouble)
        live.trouble = trouble

    async def _check_ttl(self, live: Live, now: float) -> bool:
        left, ttl = _ttl_left(live, now), live.record.spec.ttl_sec
        if left > 0:
            if left < WARNING_SECONDS and live.record.id not in self._warned:
                self._warned.add(live.record.id)
                await self._warn(live, f"ends in {left:.0f} s: its time to live of {ttl:g} s")
            return False
        if not _is_expired(live, now):
            return False
        self._warned.discard(live.record.id)
        reason = f"lived its time of {ttl:g} s"
        await self._end(live, reason, EventCause.TTL, lambda live: not _is_expired(live, now))
        return True

    async def _has_running_job(self, live: Live) -> bool:
        """A running job keeps its box, whether anybody reads its output or not."""
        if live.instance is None or live.record.state is State.PAUSED:
            return False
        return any(job.state is JobState.RUNNING for job in await live.instance.jobs())


def _is_idle(live: Live, now: float) -> bool:
    """Whether nobody has worked with the box or held it for as long as it may be idle."""
    limit = live.record.spec.idle_timeout_sec
    if not limit or live.in_use(now):
        return False
    return live.record.state in CLOCKED_STATES and time.monotonic() - live.last_used > limit


def _is_expired(live: Live, now: float) -> bool:
    """Whether the ttl is over and operations in flight have had their grace."""
    left = _ttl_left(live, now)
    return live.record.state in CLOCKED_STATES and left <= 0 and (not live.pins or -left >= GRACE_SECONDS)


def _ttl_left(live: Live, now: float) -> float:
    return live.record.created_at + live.record.spec.ttl_sec - now
