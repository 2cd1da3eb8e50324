"""The watchdog of volumes: it ends the processes of boxes that fill volumes beyond their owner's quota.

A box's own files have a size or a watchdog of their engine; a volume is a directory of the machine that outlives its
boxes. So the keeper counts the volumes that running boxes may write to, whatever engine runs them, where the owner's
quota has `volume_mb`.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from hutch.errors import HutchError
from hutch.keeper.access.callers import keeper_context
from hutch.keeper.boxes.live import Live
from hutch.keeper.volumes import FULL_REMEDY, Volumes, full
from hutch.logs import log
from hutch.model.boxes import State
from hutch.model.results import Cause, Result, Verdict
from hutch.model.spec import EffectiveSpec, MountMode, volume_of
from hutch.policy.quotas import Quota, quota_of
from hutch.providers.guest_client.disk_overrun import UNKNOWN, Overrun, Use

PAUSE_SECONDS = 0.5
"""Seconds between two counts; they are ten times what the last count took if that is more."""
_PAUSE_FACTOR = 10
_KILLED = (Cause.SIGNAL, Cause.CANCELLED)
"""The verdicts of engines on a command whose processes the watchdog has ended."""


class VolumeWatchdog:
    """Counts the volumes of every owner who has a `volume_mb` and a running box that may write to one."""

    def __init__(self, volumes: Volumes, boxes: Callable[[], Iterable[Live]], quotas: Mapping[str, Quota]) -> None:
        self._volumes = volumes
        self._boxes = boxes
        self._quotas = quotas
        self._overruns: dict[str, Overrun] = {}
        """What is known of each owner's volumes."""
        self._task = asyncio.create_task(self._run(), name="hutch volume watchdog", context=keeper_context())

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    def admit(self, live: Live, op: str, *, adds: bool) -> int:
        """Return how often the owner's boxes were stopped; raise QuotaExceeded if the volumes are too full for `op`.

        Commands may still run when the volumes are full, because they may remove files, until too many of them have
        gone on writing. `adds` is for operations that only add.
        """
        overrun = self._overrun(live)
        if overrun is None:
            return 0
        if overrun.excess is not None and (adds or overrun.is_blocked):
            raise full(overrun.excess.used, overrun.excess.limit, op)
        return overrun.ends

    def explained(self, live: Live, result: Result, ends: int) -> Result:
        """Return the result with the verdict `disk` if the watchdog ended the command after `admit` returned `ends`."""
        overrun = self._overrun(live)
        if overrun is None or overrun.reason is None or overrun.ends == ends:
            return result
        if result.verdict.cause not in _KILLED:
            return result
        verdict = Verdict(
            cause=Cause.DISK, message="ended: the owner's volumes are over their quota", limit=overrun.reason.limit,
            peak=overrun.reason.used, unit=overrun.reason.unit, remedy=FULL_REMEDY,
        )  # fmt: skip
        return result.but(verdict=verdict)

    def _overrun(self, live: Live) -> Overrun | None:
        """Return the state of the volumes that a box may write to; None if it may write to none with a limit."""
        owner = live.record.owner
        limit = quota_of(self._quotas, owner).volume_mb
        if not limit or not _writes_to_volumes(live.record.spec):
            return None
        if owner not in self._overruns:
            # The volumes may be over a limit that was set later, for which no process is ended.
            self._overruns[owner] = Overrun(Use(limit << 20, UNKNOWN.entries, UNKNOWN.unread), lived=True)
        return self._overruns[owner]

    async def _run(self) -> None:
        while True:
            begun = time.monotonic()
            writers: dict[str, list[Live]] = {}
            for live in self._boxes():
                if live.record.state is State.RUNNING and self._overrun(live) is not None:
                    writers.setdefault(live.record.owner, []).append(live)
            for owner, boxes in writers.items():
                try:
                    await self._check(owner, boxes, self._overruns[owner])
                except Exception as error:  # The task boundary: the volumes of other owners are counted all the same.
                    log("volumes").error("volumes not counted", owner=owner, error=repr(error))
            await asyncio.sleep(max(PAUSE_SECONDS, _PAUSE_FACTOR * (time.monotonic() - begun)))

    async def _check(self, owner: str, boxes: list[Live], overrun: Overrun) -> None:
        used = await self._used(owner, boxes)
        if used.exceeds(overrun.bound):
            excess = overrun.hit(used)
            overrun.ends += 1
            log("volumes").warning("volumes are over their quota", owner=owner, used=excess.used, limit=excess.limit)
            await asyncio.gather(*map(_end_processes, boxes))
            used = await self._used(owner, boxes)
        overrun.counted(used)

    async def _used(self, owner: str, boxes: list[Live]) -> Use:
        devices = {os.stat(volume.path).st_dev for volume in await self._volumes.all(owner)}
        removed = [
            await asyncio.to_thread(live.instance.removed_bytes, devices) for live in boxes if live.instance is not None
        ]
        return Use(await self._volumes.used_bytes(owner) + sum(removed))


def _writes_to_volumes(spec: EffectiveSpec) -> bool:
    places = [(spec.workspace.source, spec.workspace.mode), *((each.source, each.mode) for each in spec.mounts)]
    return any(mode is MountMode.RW and volume_of(source) is not None for source, mode in places)


async def _end_processes(live: Live) -> None:
    if live.instance is None:
        return
    try:
        await live.instance.reboot()
    except HutchError as error:
        if live.tombstone is not None:
            return  # it was destroyed meanwhile
        log("volumes").error("a box that overfills volumes goes on", box=live.record.id, error=error)
