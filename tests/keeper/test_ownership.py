"""Which keepers live is what the kernel says, not what a file says."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from hutch.keeper.takeover import keeper_locks

HOLDER = """
import sys
from pathlib import Path
from hutch.keeper.takeover.keeper_locks import Claim
claim = Claim(Path(sys.argv[1]), "other")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_claim_lives_as_long_as_its_process(tmp_path: Path) -> None:
    """Lesson 10: liveness of another instance is checked, not guessed."""
    assert not keeper_locks.alive(tmp_path, "other")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == b"held\n"
    assert keeper_locks.alive(tmp_path, "other")
    keeper_locks.sweep(tmp_path)
    assert keeper_locks.alive(tmp_path, "other"), "a sweep spares the living"
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert not keeper_locks.alive(tmp_path, "other")
    keeper_locks.sweep(tmp_path)
    assert not list((tmp_path / "keepers").iterdir())
    holder.stdin.close()
    holder.stdout.close()


def test_a_released_claim_is_gone(tmp_path: Path) -> None:
    claim = keeper_locks.Claim(tmp_path, "mine")
    claim.release()
    assert not keeper_locks.alive(tmp_path, "mine")
    assert not list((tmp_path / "keepers").iterdir())
