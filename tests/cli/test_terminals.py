"""`hutch shell` and `hutch run -t` on a real pseudo-terminal."""

import os
import signal
import termios
from collections.abc import Iterator

import pytest

from tests.cli.calling import PATIENCE, hutch, read_until, set_size, started


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """(our end, the end a program gets), 33 rows by 101 columns."""
    ours, theirs = os.openpty()
    set_size(theirs, 33, 101)
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


def test_a_shell_on_a_terminal(terminal: tuple[int, int]) -> None:
    """Issue 2.8: keys go in, the screen comes out, the size follows the window, the exit code is the shell's, and the
    terminal is as it was."""
    ours, theirs = terminal
    before = termios.tcgetattr(theirs)
    with started("shell", stdin=theirs, stdout=theirs, stderr=theirs, env={"TERM": "dumb", "PS1": "$ "}) as process:
        os.write(ours, b"stty size; echo product $((6*7))\n")
        screen = read_until(ours, b"product 42")
        assert b"33 101" in screen
        set_size(theirs, 40, 120)
        process.send_signal(signal.SIGWINCH)
        # The new size travels on its own, so the shell is asked until it has come.
        os.write(ours, b"until stty size | grep -q '^40 120$'; do sleep 0.05; done; echo re''sized\n")
        read_until(ours, b"resized")
        os.write(ours, b"exit 5\n")
        assert process.wait(PATIENCE) == 5
    assert termios.tcgetattr(theirs) == before


def test_keys_for_the_box_are_not_signals_for_us(terminal: tuple[int, int]) -> None:
    """Ctrl-C on the terminal interrupts the program in the box; Hutch and the box go on."""
    ours, theirs = terminal
    script = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done"
    with started("run", "-t", "--", "sh", "-c", script, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        read_until(ours, b"ready")
        os.write(ours, b"\x03")
        read_until(ours, b"caught")
        assert process.wait(PATIENCE) == 9


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
