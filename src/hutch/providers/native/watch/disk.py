"""Disk without quotas: the directory of a persistent box is counted while something runs in it."""

import os
import time
from dataclasses import dataclass, field
from typing import Protocol

from hutch.providers.guest_client.disk_overrun import UNKNOWN, Overrun, Use
from hutch.providers.native.watch.disk_usage import Survey, unlinked_bytes
from hutch.providers.native.watch.memory import FASTEST, FILL_RATE, IDLE, SLOWEST, Hit, _Box, _Watchdog
from hutch.providers.native.watch.processes import BoxProcesses

ENTRIES_PER_STEP = 2000
LONGEST_REST = 10.0
ENDING = 10.0
"""How long the processes of a box may take to end before whoever still writes is reported again."""


class Census(Protocol):
    """Who is in a box beside the descendants of its guest. Asked in the watchdog's thread."""

    def works_unseen(self) -> bool:
        """Whether somebody may write who is none of them."""

    def members(self) -> set[int]:
        """All processes, where they can be told; else none."""


@dataclass(slots=True)
class _DiskBox(_Box):
    overrun: Overrun = field(kw_only=True)
    census: Census = field(kw_only=True)
    directory: int = -1
    survey: Survey | None = None
    started: float = 0.0
    stirred: bool = True
    usage: Use | None = None
    counts: int = 0
    doubted: bool = False
    """The last count was over the bound, but not by so much that a tree moved under our eyes could not explain it."""
    ending: float = 0.0
    """Until when its processes may take to end."""

    def close(self) -> None:
        _Box.close(self)
        self.end_survey()
        os.close(self.directory)

    def end_survey(self) -> None:
        if self.survey:
            self.survey.close()
            self.survey = None


class DiskWatchdog(_Watchdog[_DiskBox]):
    """Reports a box that has more than it may. The caller ends its processes, and says when they have ended."""

    def watch(self, box_id: str, guest_pid: int, overrun: Overrun, directory: int, census: Census) -> None:
        """`directory` is a descriptor of the tree's root (duplicated)."""
        processes, directory = BoxProcesses(guest_pid), os.dup(directory)
        self._add(_DiskBox(box_id, processes, overrun.limit.bytes, overrun=overrun, census=census, directory=directory))

    def stir(self, box_id: str) -> None:
        box = self._boxes.get(box_id)
        if box:
            box.stirred = True
        super().stir(box_id)

    def usage(self, box_id: str) -> Use | None:
        """The last full count; None before the first."""
        box = self._boxes.get(box_id)
        return box.usage if box else None

    def counts(self, box_id: str) -> int:
        """How many full counts there were."""
        box = self._boxes.get(box_id)
        return box.counts if box else 0

    def ended(self, box_id: str) -> None:
        """The processes of a reported box have been ended: what it has now is what it may keep for the time being."""
        box = self._boxes.get(box_id)
        if box:
            box.ending = 0.0
            self.stir(box_id)

    def end_users(self, box_id: str) -> None:
        """End them from outside, those of a guest that does not."""
        with self._lock:
            box = self._boxes.get(box_id)
            if box is None:
                return
            box.processes.stand_still()
            for pid in box.processes.users():
                pidfd = box.processes.kill(pid)
                if pidfd is not None:
                    os.close(pidfd)

    def _look(self, box: _DiskBox) -> Hit | None:
        now = time.monotonic()
        if box.ending > now:
            box.due = box.ending
            return None
        if box.survey is None:
            users = box.processes.users()
            busy = bool(users) or box.census.works_unseen()
            if not busy and not box.stirred:
                box.due = now + IDLE
                return None
            box.stirred = busy  # whoever writes now is counted once more after it has ended
            held = unlinked_bytes(users | box.census.members())
            box.survey, box.started = Survey(box.directory, held), now
        walking = sum(1 for other in self._boxes.copy().values() if other.survey)
        done = box.survey.advance(max(100, ENTRIES_PER_STEP // walking))
        used, bound = box.survey.used, box.overrun.bound
        box.due = now + FASTEST
        if used.exceeds(bound):
            return self._passed(box, used, bound)
        if done:
            box.end_survey()
            box.usage, box.doubted = used, False
            box.counts += 1
            box.overrun.counted(used)
            box.due = now + self._rest(box, now - box.started)
        return None

    def _passed(self, box: _DiskBox, used: Use, bound: Use) -> Hit | None:
        """What is moved while we count may be counted twice, and nobody may be ended for that."""
        box.end_survey()
        box.stirred = True
        far = Use(2 * bound.bytes, 2 * bound.entries, UNKNOWN.unread)
        if not box.doubted and not used.exceeds(far):
            box.doubted = True
            return None
        box.doubted = False
        box.ending = time.monotonic() + ENDING
        excess = box.overrun.hit(used)
        return Hit(box.box_id, "disk", excess.used, excess.limit, excess.unit)

    def _rest(self, box: _DiskBox, walked: float) -> float:
        """Until the next count: as long as filling the room takes at best, longer if counting took long."""
        room = max(0, box.overrun.limit.bytes - box.usage.bytes) if box.usage else 0
        soonest = FASTEST if box.overrun.excess else SLOWEST
        return min(LONGEST_REST, max(soonest, min(IDLE, room / FILL_RATE), 2 * walked))
