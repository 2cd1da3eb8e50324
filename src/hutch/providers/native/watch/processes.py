"""A box's processes as an ordinary user sees them on the host: who they are, what memory they hold, ending one.

The guest is not dumpable, so its namespaces, memory map and descriptors are closed to us, but status and children are
open to everyone (verified with the guest's own uid). Whatever a box starts descends from its guest, which adopts
orphans as PID 1; what enters from outside is not its child and is named by `include`.
"""

import os
import select
import signal
from typing import NamedTuple

_KB = 1024


class Share(NamedTuple):
    """Memory that one process answers for, in bytes."""

    anonymous: int  # private pages, those in swap included
    shared: int  # shmem: tmpfs files and shared mappings it has mapped


class BoxProcesses:
    """The processes below one guest. Holds pidfds, so that a number that was given to a stranger is never trusted."""

    __slots__ = ("_entered", "_guest", "_guest_pidfd")

    def __init__(self, guest_pid: int) -> None:
        self._guest = guest_pid
        self._guest_pidfd = os.pidfd_open(guest_pid)
        self._entered: dict[int, int] = {}

    @property
    def guest(self) -> int:
        """Its pid."""
        return self._guest

    def include(self, pid: int) -> None:
        """Count a process, and its descendants, that entered the box from outside."""
        if pid not in self._entered:
            self._entered[pid] = os.pidfd_open(pid)

    def alive(self) -> bool:
        return not ended(self._guest_pidfd)

    def users(self) -> set[int]:
        """Every process but the guest; empty once the guest is dead."""
        for pid in [pid for pid, pidfd in self._entered.items() if ended(pidfd)]:
            os.close(self._entered.pop(pid))
        found = set(self._entered)
        unseen = [self._guest, *found]
        while unseen:
            fresh = _children(unseen.pop()) - found
            found |= fresh
            unseen.extend(fresh)
        # Asked last: had it died before, its number may have led us to a stranger's children.
        return found if self.alive() else set()

    def kill(self, pid: int) -> int | None:
        """SIGKILL one of `users`; its pidfd, to wait on and close, or None if it was gone."""
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        try:
            # Now the number is pinned: if it still is one of ours, the pidfd is that process or one that ended.
            if pid in self.users():
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                return pidfd
        except ProcessLookupError:
            os.close(pidfd)
            return None
        os.close(pidfd)
        return None

    def stand_still(self) -> set[int]:
        """SIGSTOP every user process that runs; those that were stopped by this, to be woken by `go_on`.

        Whoever forks meanwhile is met in the next pass: a stopped process starts nobody, so the passes end.
        """
        stopped: set[int] = set()
        for _ in range(20):
            running = {pid for pid in self.users() if pid not in stopped and _state_of(pid) not in "TtZX"}
            if not running:
                break
            stopped |= {pid for pid in running if self._signal(pid, signal.SIGSTOP)}
        return stopped

    def go_on(self, pids: set[int]) -> None:
        for pid in pids & self.users():
            self._signal(pid, signal.SIGCONT)

    def cpu_ticks(self) -> int:
        """Clock ticks used by all of the box's processes since it began, those that have ended included."""
        total = _ticks(self._guest, ended_children_only=True)
        return total + sum(_ticks(pid) for pid in self.users())

    def _signal(self, pid: int, number: int) -> bool:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        try:
            # Now the number is pinned: if it still is one of ours, the pidfd is that process or one that ended.
            if pid not in self.users():
                return False
            signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(pidfd)
        return True

    def close(self) -> None:
        for pidfd in (self._guest_pidfd, *self._entered.values()):
            os.close(pidfd)
        self._entered.clear()


def open_files(pid: int) -> int:
    """How many a process has; 0 if it has ended, or hides them."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def at_most(pid: int) -> int:
    """Bytes that `pid` holds if it shares nothing: never too low, cheap (11 us), and open to everyone."""
    share = _from_status(pid)
    return share.anonymous + share.shared


def fair_share(pid: int) -> Share:
    """The same, with pages that several processes share divided among them (0.2 ms for 40 MB).

    A process that made itself unreadable gains nothing by it: it answers for all it holds.
    """
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            fields = _fields(file.read())
    except (PermissionError, FileNotFoundError, ProcessLookupError):
        return _from_status(pid)
    return Share(fields.get(b"Pss_Anon", 0) + fields.get(b"SwapPss", 0), fields.get(b"Pss_Shmem", 0))


def name_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().strip().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def obstacle() -> str:
    """Why this machine does not let us see a box's processes, with the remedy; "" if it does."""
    if not os.path.exists("/proc/thread-self/children"):
        return "the kernel lacks /proc/PID/task/TID/children: use one built with CONFIG_PROC_CHILDREN"
    if os.getuid() == 0:
        return ""
    with open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            hidden = line.split(" ")[4] == "/proc" and "hidepid=" in line
            if hidden and not any(f"hidepid={open_}" in line for open_ in ("0", "off")):
                return "/proc hides the guest from its own user: mount /proc without hidepid, or run as root"
    return ""


def ended(pidfd: int) -> bool:
    """Whether the process is dead, reaped or not (pidfd_open(2))."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _stat(pid: int) -> list[bytes]:
    """Fields of /proc/PID/stat from the state (3) on, see proc_pid_stat(5); empty if it has gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _state_of(pid: int) -> str:
    fields = _stat(pid)
    return fields[0].decode() if fields else "X"


def _ticks(pid: int, *, ended_children_only: bool = False) -> int:
    """utime, stime (14, 15) and cutime, cstime (16, 17): its own and that of the children it has waited for."""
    fields = _stat(pid)
    return sum(map(int, fields[13:15] if ended_children_only else fields[11:15]))


def _children(pid: int) -> set[int]:
    found: set[int] = set()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found.update(map(int, file.read().split()))
    except (FileNotFoundError, ProcessLookupError):
        return found  # it ended while we looked; its children are the guest's now and seen next time
    return found


def _from_status(pid: int) -> Share:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            fields = _fields(file.read())
    except (FileNotFoundError, ProcessLookupError):
        return Share(0, 0)
    return Share(fields.get(b"RssAnon", 0) + fields.get(b"VmSwap", 0), fields.get(b"RssShmem", 0))


def _fields(content: bytes) -> dict[bytes, int]:
    """Lines such as `RssAnon:   35368 kB`, in bytes."""
    fields: dict[bytes, int] = {}
    for line in content.splitlines():
        if line.endswith(b" kB"):
            name, _, amount = line.partition(b":")
            fields[name] = int(amount[:-3]) * _KB
    return fields
