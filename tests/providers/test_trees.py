"""Processes with everything below them, halted and set going as a whole."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from hutch.linux import process_trees

# The child waits in open(2) for somebody to read; until it has started its program its parent waits in the kernel.
SPAWNING = """
import os, sys
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 1, sys.argv[1], os.O_WRONLY, 0)])
"""


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def spawning(fifo: Path) -> subprocess.Popen[bytes]:
    """A process, below it the one that spawns, and below that its child."""
    running = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"
    return subprocess.Popen([sys.executable, "-c", running, sys.executable, "-c", SPAWNING, str(fifo)])


async def test_a_parent_that_waits_for_a_stopped_child_holds_nobody_up(tmp_path: Path) -> None:
    """vfork(2): the parent cannot stop before its child has started a program, and that one is stopped already."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    above = spawning(fifo)
    try:
        root = process_trees.identity(above.pid)
        assert root is not None
        async with asyncio.timeout(20):
            while not any(state_of(each.pid) == "D" for each in process_trees.descendants([above.pid])):
                await asyncio.sleep(0.01)
        await process_trees.stop(root)
        states = sorted(state_of(each.pid) for each in process_trees.descendants([above.pid]))
        assert states == ["D", "T"]
        process_trees.resume(root)
        fifo.open("rb").close()
        assert above.wait(20) == 0
    finally:
        for each in process_trees.descendants([above.pid]):
            os.kill(each.pid, signal.SIGKILL)
        above.kill()
        above.wait()
