"""`hutch shell` and `hutch run -t` on a real pseudo-terminal."""

import os
import signal
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.cli_process import TIMEOUT, hutch, read_until, set_size, started

pytestmark = pytest.mark.slow


@contextmanager
def on_terminal(*words: str, env: dict[str, str] | None = None) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A call on a new terminal of 33 rows by 101 columns, and our end of it: what a person sees and types."""
    ours, theirs = os.openpty()
    set_size(ours, 33, 101)
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    try:
        with started(*words, **streams, env={"TERM": "dumb", **(env or {})}) as process:
            os.close(theirs)  # so that its end is an end for us too
            yield process, ours
    finally:
        os.close(ours)


def test_a_shell_on_a_terminal() -> None:
    """Keys go in, the screen comes out, the size follows the window, the exit code is the shell's, and the
    terminal is as it was."""
    with on_terminal("shell") as (process, screen):
        before = termios.tcgetattr(screen)
        os.write(screen, b"stty size; echo product $((6*7))\n")
        assert b"33 101" in read_until(screen, b"product 42")
        assert termios.tcgetattr(screen) != before
        set_size(screen, 40, 120)
        process.send_signal(signal.SIGWINCH)
        # The new size travels on its own, so the shell is asked until it has come.
        os.write(screen, b"until stty size | grep -q '^40 120$'; do sleep 0.05; done; echo re''sized\n")
        read_until(screen, b"resized")
        os.write(screen, b"exit 5\n")
        assert process.wait(TIMEOUT) == 5
        assert termios.tcgetattr(screen) == before


def test_keys_for_the_box_are_not_signals_for_us() -> None:
    """Ctrl-C on the terminal interrupts the program in the box; Hutch and the box go on."""
    script = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done"
    with on_terminal("run", "-t", "--", "sh", "-c", script) as (process, screen):
        read_until(screen, b"ready")
        os.write(screen, b"\x03")
        read_until(screen, b"caught")
        assert process.wait(TIMEOUT) == 9


def test_a_command_can_have_a_terminal_when_we_have_none() -> None:
    """`-t` with pipes on our side: the command sees a terminal, we see what it writes."""
    done = hutch("run", "-t", "--", "sh", "-c", "test -t 1 && tty")
    assert done.returncode == 0
    assert done.stdout.startswith(b"/dev/pts/")


def test_a_shell_without_a_terminal_says_what_to_use() -> None:
    done = hutch("shell")
    assert done.returncode == 125
    assert b"needs a terminal" in done.stderr
    assert b"hutch run -- sh" in done.stderr


def test_a_table_fits_its_terminal() -> None:
    """On 80 columns no line is wider, however long the cells are; a pipe gets every cell whole."""
    name = "a-name-that-is-as-long-as-the-longest-names-of-boxes-ever-are"
    assert hutch("box", "create", "--name", name, "--label", "a=b").returncode == 0
    try:
        with on_terminal("box", "list", env={"COLUMNS": "80"}) as (process, terminal):
            shown = read_until(terminal, b"default").decode()
            process.wait(TIMEOUT)
        lines = [line.rstrip("\r") for line in shown.split("\n")]
        assert len(lines) >= 2 and all(len(line) <= 80 for line in lines) and "…" in shown, shown
        assert name in hutch("box", "list").stdout.decode()
    finally:
        hutch("box", "destroy", "--force", name)
