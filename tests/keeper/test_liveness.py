"""The kernel says which keepers are alive; the mere existence of a file does not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from hutch.keeper.takeover.liveness import KeeperLock, holds_lock, remove_dead_locks

HOLDER = """
import sys
from pathlib import Path
from hutch.keeper.takeover.liveness import KeeperLock
lock = KeeperLock(Path(sys.argv[1]), "other")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_is_held_as_long_as_its_process_lives(tmp_path: Path) -> None:
    """Liveness of another instance is checked, not guessed (lesson 10)."""
    assert not holds_lock(tmp_path, "other")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == b"held\n"
    assert holds_lock(tmp_path, "other")
    remove_dead_locks(tmp_path)
    assert holds_lock(tmp_path, "other"), "a sweep spares the living"
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert not holds_lock(tmp_path, "other")
    remove_dead_locks(tmp_path)
    assert not list((tmp_path / "keepers").iterdir())
    holder.stdin.close()
    holder.stdout.close()


def test_a_released_lock_is_gone(tmp_path: Path) -> None:
    lock = KeeperLock(tmp_path, "mine")
    lock.release()
    assert not holds_lock(tmp_path, "mine")
    assert not list((tmp_path / "keepers").iterdir())
