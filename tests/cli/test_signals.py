"""Signals to `hutch run` reach the command; none of them leaves a box behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.cli_process import TIMEOUT, read_until, started
from tests.leaks import leaving_no_trace

pytestmark = pytest.mark.slow


def ready(process: subprocess.Popen[bytes]) -> int:
    """Its output's descriptor, once the command has said that it listens."""
    assert process.stdout
    fd = process.stdout.fileno()
    read_until(fd, b"ready\n")
    return fd


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_the_command_gets_the_signal(number: signal.Signals) -> None:
    """It may answer as it likes, and its exit code is ours."""
    script = f"trap 'exit 42' {number.name[3:]}; echo ready; while :; do sleep 0.05; done"
    with started("run", "--", "sh", "-c", script) as process:
        ready(process)
        process.send_signal(number)
        assert process.wait(TIMEOUT) == 42


def test_a_signal_that_kills_is_128_and_its_number() -> None:
    with started("run", "--", "sh", "-c", "echo ready; exec sleep 100") as process:
        ready(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 128 + signal.SIGTERM
        assert process.stderr
        assert process.stderr.read() == b""


def test_a_second_interrupt_kills(hutch_directories: Path) -> None:
    """Ctrl-C twice: a command that does not listen is killed, and its box ends with it."""
    script = "trap 'echo heard' INT; echo ready; while :; do sleep 0.05; done"
    with (
        leaving_no_trace(hutch_directories / "r", hutch_directories / "s"),
        started("run", "--", "sh", "-c", script) as process,
    ):
        fd = ready(process)
        process.send_signal(signal.SIGINT)
        read_until(fd, b"heard\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 128 + signal.SIGKILL


def test_a_signal_before_there_is_a_command_ends_the_making(hutch_directories: Path) -> None:
    """Sent at once, it meets the start of Python, the imports or the creation: never a box that stays."""
    with (
        leaving_no_trace(hutch_directories / "r", hutch_directories / "s"),
        started(
            "run", "--", "sleep", "100", preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ) as process,
    ):
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(TIMEOUT) in (-signal.SIGTERM, 128 + signal.SIGTERM)


def test_what_was_ignored_stays_ignored() -> None:
    """`nohup hutch run`: SIGHUP is not ours to pass on."""
    with started(
        "run", "--", "sh", "-c", "echo ready; read line; echo $line",
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    ) as process:  # fmt: skip
        fd = ready(process)
        process.send_signal(signal.SIGHUP)
        assert process.stdin
        process.stdin.write(b"still here\n")
        read_until(fd, b"still here\n")
        assert process.wait(TIMEOUT) == 0


def test_an_interrupt_while_we_are_still_importing_is_no_traceback() -> None:
    """The moment after the shell's Enter is when people press Ctrl-C; the import is held where it would strike."""
    program = """
import sys
from hutch.cli import main
def interrupted(*_, **__): raise KeyboardInterrupt
main._import_lightly = interrupted
sys.argv = ["hutch", "run", "--", "true"]
main.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=TIMEOUT)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
