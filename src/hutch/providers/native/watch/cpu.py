"""CPU shares without cgroups: a box that has used more than its share stands still until it has paid its debt.

By SIGSTOP and SIGCONT, for all processes of a box at once; the guest itself is never stopped. Later and coarser than
the kernel's quota, and a program that watches its children's job control can notice it: reported as
`enforced_by: watchdog`. The same means pauses a box where there is no freezer.
"""

import os
import time
from dataclasses import dataclass, field

from hutch.providers.native.watch.memory import FASTEST, IDLE, SLOWEST, Hit, _Box, _Watchdog
from hutch.providers.native.watch.processes import BoxProcesses

BURST = 0.2
"""Seconds of its share that a box may save up and spend at once."""
LONGEST_STOP = 1.0
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class _CpuBox(_Box):
    cpus: float = 1.0
    credit: float = 0.0
    """CPU seconds the box may use now; below zero it is in debt."""
    used: float = 0.0
    seen: float = field(default_factory=time.monotonic)
    stopped: set[int] = field(default_factory=set)
    held: bool = False
    """Paused by a call: stays stopped whatever its credit."""

    def close(self) -> None:
        self.processes.go_on(self.stopped)
        _Box.close(self)


class CpuWatchdog(_Watchdog[_CpuBox]):
    """Holds every box to its share of CPU time."""

    def watch(self, box_id: str, guest_pid: int, cpus: float) -> None:
        processes = BoxProcesses(guest_pid)
        # A keeper that died may have left them standing still.
        processes.go_on(processes.users())
        used = processes.cpu_ticks() / TICK
        self._add(_CpuBox(box_id, processes, 0, cpus=cpus, credit=cpus * BURST, used=used))

    def share(self, box_id: str, cpus: float) -> None:
        box = self._boxes.get(box_id)
        if box:
            box.cpus = cpus

    def hold(self, box_id: str) -> bool:
        """Stop every process until `let_go`; False if the box is not watched."""
        with self._lock:
            box = self._boxes.get(box_id)
            if box is None:
                return False
            box.held = True
            box.stopped |= box.processes.stand_still()
        return True

    def let_go(self, box_id: str) -> bool:
        """False if the box is not watched."""
        with self._lock:
            box = self._boxes.get(box_id)
            if box is None:
                return False
            box.held = False
            box.processes.go_on(box.stopped)
            box.stopped.clear()
        self.stir(box_id)
        return True

    def _look(self, box: _CpuBox) -> Hit | None:
        now = time.monotonic()
        if box.held:
            box.due = now + IDLE
            return None
        used = box.processes.cpu_ticks() / TICK
        earned = box.cpus * (now - box.seen)
        box.credit = min(box.cpus * BURST, box.credit + earned - (used - box.used))
        spent, box.used, box.seen = used - box.used, used, now
        if box.credit < 0:
            # Also who was started, or woken by a neighbour, since the last look.
            box.stopped |= box.processes.stand_still()
            box.due = now + min(LONGEST_STOP, max(FASTEST, -box.credit / box.cpus))
            return None
        # Whoever had to stand still will be over its share again at once.
        greedy = bool(box.stopped) or spent > 0.7 * earned
        if box.stopped:
            box.processes.go_on(box.stopped)
            box.stopped.clear()
        if not greedy and not box.processes.users():
            box.due = now + IDLE
        else:
            box.due = now + (FASTEST if greedy else SLOWEST)
        return None
