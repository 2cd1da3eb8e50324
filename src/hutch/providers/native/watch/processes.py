"""The processes of a box as an ordinary user sees them on the host: finding, measuring, stopping and killing them.

The guest is not dumpable, so its namespaces, memory map and descriptors are closed to us, but its status and children
are readable. Whatever a box starts descends from its guest, which adopts orphans as PID 1. A process that enters from
outside is not its child, and is added by `include`.
"""

import os
import select
import signal
from typing import NamedTuple

_KB = 1024


class Share(NamedTuple):
    """The memory that is counted for one process, in bytes."""

    anonymous: int  # private pages, including those in swap
    shared: int  # mapped shmem: tmpfs files and shared mappings


class BoxProcesses:
    """The processes below one guest. It holds pidfds, so that a reused pid is never taken for a process of the box."""

    __slots__ = ("_entered", "_guest", "_guest_pidfd")

    def __init__(self, guest_pid: int) -> None:
        self._guest = guest_pid
        self._guest_pidfd = os.pidfd_open(guest_pid)
        self._entered: dict[int, int] = {}

    @property
    def guest(self) -> int:
        """The guest's pid."""
        return self._guest

    def include(self, pid: int) -> None:
        """Also count a process that entered the box from outside, with its descendants."""
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
        # Checked last: if the guest has died, its pid may have led us to another process's children.
        return found if self.alive() else set()

    def kill(self, pid: int) -> int | None:
        """Kill one of `users`, and return its pidfd, to wait on and close, or None if it had ended."""
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        try:
            # The pidfd pins the pid: if that still is one of ours, the pidfd is that process, or one that ended.
            if pid in self.users():
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                return pidfd
        except ProcessLookupError:
            os.close(pidfd)
            return None
        os.close(pidfd)
        return None

    def stop_all(self) -> set[int]:
        """Stop every running user process, and return those that this call stopped, for `resume`.

        A child that is forked meanwhile is found in the next pass. A stopped process forks no more, so the passes end.
        """
        stopped: set[int] = set()
        for _ in range(20):
            running = {pid for pid in self.users() if pid not in stopped and _state_of(pid) not in "TtZX"}
            if not running:
                break
            stopped |= {pid for pid in running if self._signal(pid, signal.SIGSTOP)}
        return stopped

    def resume(self, pids: set[int]) -> None:
        for pid in pids & self.users():
            self._signal(pid, signal.SIGCONT)

    def cpu_ticks(self) -> int:
        """Clock ticks used by all of the box's processes since it started, including those that have ended."""
        total = _ticks(self._guest, ended_children_only=True)
        return total + sum(_ticks(pid) for pid in self.users())

    def _signal(self, pid: int, number: int) -> bool:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        try:
            # The pidfd pins the pid: if that still is one of ours, the pidfd is that process, or one that ended.
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
    """The number of a process's open files; 0 if it has ended or is closed to us."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def at_most(pid: int) -> int:
    """An upper bound of the bytes that `pid` holds: it counts shared pages fully, and is cheap (11 us)."""
    share = _from_status(pid)
    return share.anonymous + share.shared


def proportional_share(pid: int) -> Share:
    """The bytes that `pid` holds, with shared pages divided among their processes (0.2 ms for 40 MB).

    A process that made itself unreadable gains nothing by it: it is counted with all it holds.
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
    """Say why we cannot see a box's processes on this machine, with the remedy; "" if we can."""
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
    """Whether the process has ended, reaped or not (pidfd_open(2))."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _stat(pid: int) -> list[bytes]:
    """Fields of /proc/PID/stat from the state (3) on, see proc_pid_stat(5); empty if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _state_of(pid: int) -> str:
    fields = _stat(pid)
    return fields[0].decode() if fields else "X"


def _ticks(pid: int, *, ended_children_only: bool = False) -> int:
    """The sum of utime, stime (14, 15) and cutime, cstime (16, 17), which count children it has waited for."""
    fields = _stat(pid)
    return sum(map(int, fields[13:15] if ended_children_only else fields[11:15]))


def _children(pid: int) -> set[int]:
    found: set[int] = set()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found.update(map(int, file.read().split()))
    except (FileNotFoundError, ProcessLookupError):
        return found  # it ended meanwhile; its children are now the guest's, and are seen next time
    return found


def _from_status(pid: int) -> Share:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            fields = _fields(file.read())
    except (FileNotFoundError, ProcessLookupError):
        return Share(0, 0)
    return Share(fields.get(b"RssAnon", 0) + fields.get(b"VmSwap", 0), fields.get(b"RssShmem", 0))


def _fields(content: bytes) -> dict[bytes, int]:
    """Parse lines such as `RssAnon:   35368 kB` into bytes."""
    fields: dict[bytes, int] = {}
    for line in content.splitlines():
        if line.endswith(b" kB"):
            name, _, amount = line.partition(b":")
            fields[name] = int(amount[:-3]) * _KB
    return fields
