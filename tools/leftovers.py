"""Run a command, and name and end the processes that it leaves behind.

    tools/leftovers.py COMMAND...

Whatever a test starts and forgets becomes a child of this process when its own parents have ended. It gets some time
to end by itself, as boxes without a keeper do. What lives on after that is named, each in a line with the test that
started it as far as its environment tells, and is killed. The exit code is the command's.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from hutch.linux import kernel

PATIENCE_SECONDS = 90.0
"""Longer than a box of a killed server lives in the tests (`GRACE` of tests/server/serving.py)."""
KILL_SECONDS = 20.0


def main(command: list[str]) -> int:
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    child = subprocess.Popen(command)
    # The terminal sends its interrupt to the command as well, which decides what it means.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number))
    status = _wait_for(child.pid)
    for line in _end_those_left():
        print(f"left behind: {line}", flush=True)
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _wait_for(child: int) -> int:
    """Reap every child that ends, until the given one does; return its status."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return status


def _end_those_left() -> list[str]:
    """Wait for adopted processes to end, kill those that do not, and return what they were."""
    ends_at = time.monotonic() + PATIENCE_SECONDS
    while _reap() and time.monotonic() < ends_at:
        time.sleep(0.1)
    named: dict[int, str] = {}
    ends_at = time.monotonic() + KILL_SECONDS
    while (children := _reap()) and time.monotonic() < ends_at:
        for pid in children:  # The children of one that dies become ours, and are next.
            named.setdefault(pid, _describe(pid))
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    return list(named.values())


def _reap() -> list[int]:
    """Reap the children that have ended, and return those that live."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return [int(pid) for pid in Path("/proc/self/task", str(os.getpid()), "children").read_text().split()]


def _describe(pid: int) -> str:
    """The command line, when it started, and the test during which it did."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        started = time.time() - _age(pid)
    except (FileNotFoundError, ProcessLookupError):
        return f"{pid}, which has just ended"
    command = b" ".join(words).decode(errors="replace").strip()
    return f"{pid} {command[:120]}, started at {time.strftime('%H:%M:%S', time.localtime(started))}{_test_of(pid)}"


def _age(pid: int) -> float:
    """Seconds since the process was started."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _test_of(pid: int) -> str:
    """What pytest has put into the environment of all that a test starts; boxes have an environment of their own."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    found = [each for each in environment if each.startswith(b"PYTEST_CURRENT_TEST=")]
    return f" by {found[0].partition(b'=')[2].decode(errors='replace')}" if found else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
