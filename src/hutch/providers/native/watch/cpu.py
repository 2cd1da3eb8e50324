"""CPU limits without control groups: a box that has used more than its share is stopped until it is within it again.

The watchdog stops all processes of a box at once by SIGSTOP and SIGCONT, but never the guest. It is later and coarser
than the kernel's quota, and a program that watches its children's job control can notice it, so it is reported as
`enforced_by: watchdog`. Boxes are paused in the same way where there is no freezer.
"""

import os
import time
from dataclasses import dataclass, field

from hutch.providers.native.watch.memory import FASTEST, IDLE, SLOWEST, LimitHit, Watchdog, WatchedBox
from hutch.providers.native.watch.processes import BoxProcesses

BURST = 0.2
"""Seconds of its share that a box may save and use at once."""
LONGEST_STOP = 1.0
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class _CpuBox(WatchedBox):
    cpus: float = 1.0
    credit: float = 0.0
    """CPU seconds that the box may use now; negative if it has used too many."""
    used: float = 0.0
    seen: float = field(default_factory=time.monotonic)
    stopped: set[int] = field(default_factory=set)
    held: bool = False
    """Whether a caller paused it, so that it stays stopped whatever its credit."""

    def close(self) -> None:
        self.processes.resume(self.stopped)
        WatchedBox.close(self)


class CpuWatchdog(Watchdog[_CpuBox]):
    """Holds every box to its share of CPU time."""

    def watch(self, box_id: str, guest_pid: int, cpus: float) -> None:
        processes = BoxProcesses(guest_pid)
        # A keeper that died may have left them stopped.
        processes.resume(processes.users())
        used = processes.cpu_ticks() / TICK
        self._add(_CpuBox(box_id, processes, 0, cpus=cpus, credit=cpus * BURST, used=used))

    def share(self, box_id: str, cpus: float) -> None:
        box = self._boxes.get(box_id)
        if box:
            box.cpus = cpus

    def pause(self, box_id: str) -> bool:
        """Stop every process until `resume`; False if the box is not watched."""
        with self._lock:
            box = self._boxes.get(box_id)
            if box is None:
                return False
            box.held = True
            box.stopped |= box.processes.stop_all()
        return True

    def resume(self, box_id: str) -> bool:
        """Let its processes go on; False if the box is not watched."""
        with self._lock:
            box = self._boxes.get(box_id)
            if box is None:
                return False
            box.held = False
            box.processes.resume(box.stopped)
            box.stopped.clear()
        self.note_activity(box_id)
        return True

    def _check_box(self, box: _CpuBox) -> LimitHit | None:
        now = time.monotonic()
        if box.held:
            box.due = now + IDLE
            return None
        used = box.processes.cpu_ticks() / TICK
        earned = box.cpus * (now - box.seen)
        box.credit = min(box.cpus * BURST, box.credit + earned - (used - box.used))
        spent, box.used, box.seen = used - box.used, used, now
        if box.credit < 0:
            # This also stops processes that were started, or resumed by others, since the last check.
            box.stopped |= box.processes.stop_all()
            box.due = now + min(LONGEST_STOP, max(FASTEST, -box.credit / box.cpus))
            return None
        # A box that had to be stopped will be over its share again at once.
        greedy = bool(box.stopped) or spent > 0.7 * earned
        if box.stopped:
            box.processes.resume(box.stopped)
            box.stopped.clear()
        if not greedy and not box.processes.users():
            box.due = now + IDLE
        else:
            box.due = now + (FASTEST if greedy else SLOWEST)
        return None
