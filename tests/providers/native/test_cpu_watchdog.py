"""CPU shares and pauses by signals, for boxes that no control group holds."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hutch.providers.native.watch.cpu import CpuWatchdog
from hutch.providers.native.watch.processes import BoxProcesses

BUSY = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'while True: pass'])"


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[bytes]]:
    """It stands for the guest; its child is the busy user process."""
    process = subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True)
    yield process
    os.killpg(process.pid, 9)
    process.wait()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def only_user(parent: subprocess.Popen[bytes]) -> int:
    processes = BoxProcesses(parent.pid)
    until(lambda: len(processes.users()) == 1)
    (pid,) = processes.users()
    processes.close()
    return pid


def test_a_busy_box_gets_its_share(parent: subprocess.Popen[bytes]) -> None:
    only_user(parent)
    dog = CpuWatchdog()
    dog.watch("box", parent.pid, 0.2)
    processes = BoxProcesses(parent.pid)
    before, started = processes.cpu_ticks(), time.monotonic()
    while time.monotonic() - started < 2:
        dog.check()
        time.sleep(0.01)
    used = (processes.cpu_ticks() - before) / os.sysconf("SC_CLK_TCK")
    assert used < 0.6 * (time.monotonic() - started), "a fifth is allowed, all of it is what it would take"
    processes.close()
    dog.close()


def test_pause_and_resume(parent: subprocess.Popen[bytes]) -> None:
    user = only_user(parent)
    dog = CpuWatchdog()
    dog.watch("box", parent.pid, 64)
    dog.pause("box")
    until(lambda: state(user) == "T")
    dog.check()
    assert state(user) == "T"
    assert state(parent.pid) != "T", "the guest is never stopped"
    dog.resume("box")
    until(lambda: state(user) == "R")
    dog.close()


def test_a_box_that_is_not_watched_is_neither_paused_nor_resumed() -> None:
    """Its control group holds its CPU, or held it until the box ended."""
    dog = CpuWatchdog()
    assert not dog.pause("box")
    assert not dog.resume("box")


def test_nobody_stays_stopped_when_the_watch_ends(parent: subprocess.Popen[bytes]) -> None:
    user = only_user(parent)
    dog = CpuWatchdog()
    dog.watch("box", parent.pid, 1)
    dog.pause("box")
    until(lambda: state(user) == "T")
    dog.forget("box")
    until(lambda: state(user) != "T")


def test_a_new_watch_wakes_what_a_dead_keeper_stopped(parent: subprocess.Popen[bytes]) -> None:
    user = only_user(parent)
    os.kill(user, 19)
    until(lambda: state(user) == "T")
    dog = CpuWatchdog()
    dog.watch("box", parent.pid, 64)
    until(lambda: state(user) != "T")
    dog.close()


def test_time_of_ended_processes_counts() -> None:
    """Many short processes are not a way around the share."""
    work = "subprocess.run([sys.executable, '-c', 'sum(range(10**7))'])"
    script = f"import subprocess, sys\nfor _ in range(3): {work}\nprint('done', flush=True)\ninput()"
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    processes = BoxProcesses(parent.pid)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"done\n"
    assert processes.users() == set()
    assert processes.cpu_ticks() > 0
    processes.close()
    parent.communicate(b"\n")
