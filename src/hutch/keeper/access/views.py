"""What every surface shows of the keeper's boxes, and of the keeper itself."""

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING

import hutch
from hutch.config import Config
from hutch.errors import HutchError, NotFound
from hutch.keeper.boxes.clocks import CLOCKED_STATES
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.records import BoxRecord
from hutch.keeper.engines import EngineChoice, Engines
from hutch.keeper.receipts.receipts import Receipts
from hutch.keeper.store.store import Store
from hutch.keeper.takeover.liveness import Liveness
from hutch.model.boxes import BoxInfo, State
from hutch.model.ids import BoxId

if TYPE_CHECKING:
    from hutch.model.status import Status

JOBS_TIMEOUT = 5.0
"""Seconds in which a box must list its jobs to have them shown."""


def box_info(record: BoxRecord, live: Live | None = None, *, elsewhere: bool = False) -> BoxInfo:
    """Return a box as others may see it, without secrets and expired leases.

    `elsewhere` means that another live keeper has it.
    """
    now = time.time()
    used_at = record.used_at if live is None else now - time.monotonic() + live.last_used
    lease = record.lease
    ends = _end_times(record, live, now, used_at, elsewhere=elsewhere)
    trouble = "" if live is None or live.instance is None else live.instance.trouble()
    return BoxInfo(
        id=record.id,
        name=record.spec.name,
        owner=record.owner,
        state=record.state,
        reason=trouble or record.reason,
        provider=record.instance.provider,
        spec=record.spec.shown(),
        created_at=record.created_at,
        used_at=used_at,
        grace_sec=record.grace_sec,
        remaining_sec=max(0.0, min(ends) - now) if ends else None,
        epoch=record.epoch,
        lease=lease if lease is not None and lease.live(now) else None,
        elsewhere=elsewhere,
        created_hooks_done=record.created_hooks_done,
    )


async def box_info_with_jobs(live: Live) -> BoxInfo:
    """Return a box with its jobs. A box that does not run or answer has none to show; nothing is pinned or resumed."""
    info = box_info(live.record, live)
    if live.instance is None or live.record.state is not State.RUNNING:
        return info
    try:
        async with asyncio.timeout(JOBS_TIMEOUT):
            return info.but(jobs=await live.instance.jobs())
    except (HutchError, TimeoutError):  # The next operation on the box reports what is wrong with it.
        return info


def _end_times(record: BoxRecord, live: Live | None, now: float, used_at: float, *, elsewhere: bool) -> list[float]:
    """Return when each of its clocks would end the box, if nobody used it from now on."""
    ends = [record.created_at + record.spec.ttl_sec] if record.spec.ttl_sec else []
    # The dead-man's clock stands still while a keeper is here, and starts again when it leaves. A box that was left
    # and has outlived its clock is kept by a job.
    if (
        record.left_at
        and not elsewhere
        and record.state is State.RUNNING
        and (live is not None or record.is_waiting(now))
    ):
        ends.append((record.left_at if live is None else now) + record.grace_sec)
    if live is not None and record.spec.idle_timeout_sec and record.state in CLOCKED_STATES:
        ends.append((now if live.in_use(now) else used_at) + record.spec.idle_timeout_sec)
    return ends


class Views:
    """Reads boxes of the store and the condition of the keeper. Looking at a box extends none of its clocks."""

    def __init__(
        self,
        keeper_id: str,
        config: Config,
        store: Store,
        engines: Engines,
        liveness: Liveness,
        receipts: Receipts,
        boxes: dict[BoxId, Live],
    ) -> None:
        """`boxes` is the keeper's own dictionary."""
        self._keeper_id = keeper_id
        self._config = config
        self._store = store
        self._engines = engines
        self._liveness = liveness
        self._receipts = receipts
        self._boxes = boxes

    async def box(self, record: BoxRecord) -> BoxInfo:
        """Return a box of the store, whichever keeper has it."""
        ours = self._boxes.get(record.id)
        if ours is not None:
            return box_info(ours.record, ours)
        return box_info(record, elsewhere=await self._liveness.alive(record.keeper))

    async def boxes(self, owner: str | None, *, after: str = "", limit: int | None = None) -> tuple[BoxInfo, ...]:
        """Return the boxes of the store that are this owner's, oldest first; None means all owners.

        A list of many boxes costs as much as the part of it that is asked for: at most `limit` boxes, those that come
        after the box `after`.

        Raises:
            NotFound: The box `after` is gone, so the list has to be begun again.
        """
        if after:
            last = await self._store.get(BoxId(after))
            if last is None or owner not in (None, last.owner):
                raise NotFound(f"no box {after} to continue the list from", remedy="list from the beginning")
        most = None if limit is None else max(0, limit)
        found = await self._store.page(owner, self._ours, after=after, limit=most)
        return tuple([await self.box(record) for record in found])

    def _ours(self, box_id: BoxId) -> BoxRecord | None:
        live = self._boxes.get(box_id)
        return None if live is None else live.record

    async def status(self, boxes: tuple[BoxRecord, ...], since: float) -> "Status":
        """Return whether the keeper can create boxes; status, readiness, tools and MCP hosting all rest on this.

        `boxes` are those that the caller may count.
        """
        from hutch.model.status import Condition, Status

        config = self._config
        states = Counter(str(record.state) for record in boxes)
        choice = await self._engines.available() if config.enabled else EngineChoice("", {})
        state, reason, remedy = Condition.READY, "", ""
        if not config.enabled:
            state, reason, remedy = Condition.DISABLED, "enabled = false in the configuration", "set enabled = true"
        elif not choice.provider:
            state, reason, remedy = Condition.UNAVAILABLE, choice.reason, choice.remedy
        elif self._liveness.lapsed():
            state, reason = Condition.DEGRADED, "the store does not answer"
            remedy = "boxes that others could take over answer again when the store is back"
        elif self._receipts.queue is not None and self._receipts.queue.failing:
            state, reason = Condition.DEGRADED, "receipts cannot be written"
            remedy = "look at the disk or database that holds them: when too many wait, nothing more is done"
        elif choice.passed:
            passed = "; ".join(f"{name}: {why}" for name, why in choice.passed.items())
            state, reason = Condition.DEGRADED, f"provider {choice.provider} stands in ({passed})"
            remedy = "hutch doctor"
        elif states[State.UNKNOWN]:
            state, reason = Condition.DEGRADED, f"{states[State.UNKNOWN]} boxes cannot be reached"
            remedy = "look at their reasons: hutch box list"
        profile = config.resolve_profile(config.profile)
        return Status(
            state=state, enabled=config.enabled, available=state in (Condition.READY, Condition.DEGRADED),
            reason=reason, remedy=remedy, provider=choice.provider or config.provider,
            profile=profile.name, idle_timeout_sec=profile.idle_timeout_sec, ttl_sec=profile.ttl_sec,
            version=hutch.__version__,
            keeper=self._keeper_id, uptime_sec=time.time() - since, boxes=dict(states),
        )  # fmt: skip
