"""Disk limits without quotas: the directory of a persistent box is counted while something runs in the box."""

import os
import time
from dataclasses import dataclass, field
from typing import Protocol

from hutch.providers.guest_client.disk_overrun import UNKNOWN, Overrun, Use
from hutch.providers.native.watch.disk_usage import DiskScan, unlinked_bytes
from hutch.providers.native.watch.memory import FASTEST, FILL_RATE, IDLE, SLOWEST, LimitHit, Watchdog, WatchedBox
from hutch.providers.native.watch.processes import BoxProcesses

ENTRIES_PER_STEP = 2000
LONGEST_REST = 10.0
ENDING = 10.0
"""Seconds that the processes of a box may take to end before the box is reported again."""


class BoxMembers(Protocol):
    """Tells of processes that are no descendants of the guest. It is called in the watchdog's thread."""

    def works_unseen(self) -> bool:
        """Whether a process that is no descendant of the guest may write."""

    def members(self) -> set[int]:
        """All processes of the box, where they can be listed; else none."""


@dataclass(slots=True)
class _DiskBox(WatchedBox):
    overrun: Overrun = field(kw_only=True)
    box_members: BoxMembers = field(kw_only=True)
    directory: int = -1
    scan: DiskScan | None = None
    started: float = 0.0
    active: bool = True
    usage: Use | None = None
    counts: int = 0
    doubted: bool = False
    """Whether the last count was over the bound, but so little that a tree moved during the count could explain it."""
    ending: float = 0.0
    """The time until which its processes may take to end."""

    def close(self) -> None:
        WatchedBox.close(self)
        self.end_scan()
        os.close(self.directory)

    def end_scan(self) -> None:
        if self.scan:
            self.scan.close()
            self.scan = None


class DiskWatchdog(Watchdog[_DiskBox]):
    """Reports a box that is over its disk limit. The caller ends its processes, and calls `ended` afterwards."""

    def watch(self, box_id: str, guest_pid: int, overrun: Overrun, directory: int, box_members: BoxMembers) -> None:
        """Watch a box. `directory` is a descriptor of the tree's root, and is duplicated."""
        processes, directory = BoxProcesses(guest_pid), os.dup(directory)
        self._add(
            _DiskBox(
                box_id, processes, overrun.limit.bytes, overrun=overrun, box_members=box_members, directory=directory
            )
        )

    def note_activity(self, box_id: str) -> None:
        box = self._boxes.get(box_id)
        if box:
            box.active = True
        super().note_activity(box_id)

    def usage(self, box_id: str) -> Use | None:
        """The last full count; None before the first."""
        box = self._boxes.get(box_id)
        return box.usage if box else None

    def counts(self, box_id: str) -> int:
        """The number of full counts so far."""
        box = self._boxes.get(box_id)
        return box.counts if box else 0

    def ended(self, box_id: str) -> None:
        """Count again, because the processes of a reported box have been ended."""
        box = self._boxes.get(box_id)
        if box:
            box.ending = 0.0
            self.note_activity(box_id)

    def end_users(self, box_id: str) -> None:
        """End the processes of a box from outside, if its guest does not end them."""
        with self._lock:
            box = self._boxes.get(box_id)
            if box is None:
                return
            box.processes.stop_all()
            for pid in box.processes.users():
                pidfd = box.processes.kill(pid)
                if pidfd is not None:
                    os.close(pidfd)

    def _check_box(self, box: _DiskBox) -> LimitHit | None:
        now = time.monotonic()
        if box.ending > now:
            box.due = box.ending
            return None
        if box.scan is None:
            users = box.processes.users()
            busy = bool(users) or box.box_members.works_unseen()
            if not busy and not box.active:
                box.due = now + IDLE
                return None
            box.active = busy  # a process that writes now is counted once more after it has ended
            held = unlinked_bytes(users | box.box_members.members())
            box.scan, box.started = DiskScan(box.directory, held), now
        walking = sum(1 for other in self._boxes.copy().values() if other.scan)
        done = box.scan.advance(max(100, ENTRIES_PER_STEP // walking))
        used, bound = box.scan.used, box.overrun.bound
        box.due = now + FASTEST
        if used.exceeds(bound):
            return self._passed(box, used, bound)
        if done:
            box.end_scan()
            box.usage, box.doubted = used, False
            box.counts += 1
            box.overrun.counted(used)
            box.due = now + self._rest(box, now - box.started)
        return None

    def _passed(self, box: _DiskBox, used: Use, bound: Use) -> LimitHit | None:
        """Handle a count over the bound. Moved files may be counted twice, so a small excess is counted again."""
        box.end_scan()
        box.active = True
        far = Use(2 * bound.bytes, 2 * bound.entries, UNKNOWN.unread)
        if not box.doubted and not used.exceeds(far):
            box.doubted = True
            return None
        box.doubted = False
        box.ending = time.monotonic() + ENDING
        excess = box.overrun.hit(used)
        return LimitHit(box.box_id, "disk", excess.used, excess.limit, excess.unit)

    def _rest(self, box: _DiskBox, walked: float) -> float:
        """Seconds until the next count: as long as filling the free space takes at best, longer after a long count."""
        room = max(0, box.overrun.limit.bytes - box.usage.bytes) if box.usage else 0
        soonest = FASTEST if box.overrun.excess else SLOWEST
        return min(LONGEST_REST, max(soonest, min(IDLE, room / FILL_RATE), 2 * walked))
