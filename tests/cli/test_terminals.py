"""Commands on a real pseudo-terminal: `hutch shell`, `hutch run -t`, tables, and the progress of long work."""

import io
import os
import signal
import subprocess
import sys
import tarfile
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.cli_process import TIMEOUT, Killed, hutch, read_until, set_size, started

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
    """Ctrl-C on the terminal interrupts the program in the box; Hutch and the box keep running."""
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


def test_a_narrow_table_leaves_out_columns_rather_than_names() -> None:
    """On 80 columns each profile has its whole name, and enough of what it is for to choose it."""
    whole = hutch("profiles").stdout.decode().split("\n")
    with on_terminal("profiles", env={"COLUMNS": "80"}) as (process, terminal):
        shown = read_until(terminal, b"\nmcp ").decode().split("\r\n")
        process.wait(TIMEOUT)
    assert all(len(line) <= 80 for line in shown), shown
    assert [line.split()[0] for line in shown[:-1]] == [line.split()[0] for line in whole[: len(shown) - 1]]
    about = whole[0].index("FOR")
    assert whole[1][about : about + 19] in shown[1], shown


# --- progress ---------------------------------------------------------------------------------------------------------

AT_ONCE = """
from hutch.cli import live_output, main
live_output.PROGRESS_DELAY_SECONDS = 0
main.main()
"""
"""Hutch, which shows the progress of the shortest work too."""


@contextmanager
def errors_on_terminal(*words: str) -> Iterator[tuple[Killed, int]]:
    """A call whose standard error alone is a terminal, and our end of it; input is a pipe."""
    ours, theirs = os.openpty()
    set_size(ours, 33, 101)
    try:
        with Killed([sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=theirs) as process:
            os.close(theirs)
            yield process, ours
    finally:
        os.close(ours)


@pytest.fixture
def box() -> Iterator[str]:
    made = hutch("box", "create", "--disk", "256").stdout.decode().strip()
    yield made
    hutch("box", "destroy", made)


def test_a_copy_from_a_pipe_says_how_much_has_come(box: str) -> None:
    """While the source still writes, the bytes that have come are shown; the terminal is clean afterwards."""
    with errors_on_terminal("-m", "hutch.cli.main", "box", "cp", "-", f"{box}:all") as (process, screen):
        assert process.stdin is not None
        process.stdin.write(b"x" * 3_000_000)
        process.stdin.flush()
        read_until(screen, b", 3.0 MB")
        process.stdin.close()
        assert b"\r\x1b[Khutch: copied 3.0 MB" in read_until(screen, b"copied 3.0 MB"), "progress was left behind"
        assert process.wait(TIMEOUT) == 0


def test_copies_count_their_bytes(box: str, tmp_path: Path) -> None:
    """Files and trees, into a box and out of it: the bytes that are done, and of how many where that is known."""
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    for name in ("one", "deep/two"):
        (tree / name).write_bytes(os.urandom(2_000_000))
    for source, target, shown in (
        (str(tree), f"{box}:tree", b"4.0 MB of 4.0 MB (100 %)"),
        (str(tree / "one"), f"{box}:one", b"2.0 MB of 2.0 MB (100 %)"),
        (f"{box}:one", str(tmp_path / "back"), b"2.0 MB of 2.0 MB (100 %)"),
        (f"{box}:tree", str(tmp_path / "all"), b"4.0 MB"),
    ):
        with errors_on_terminal("-c", AT_ONCE, "box", "cp", source, target) as (process, screen):
            lines = (read_until(screen, shown) + read_until(screen, b"copied")).decode().split("\r")
            assert max(map(len, lines)) < 101 + len("\x1b[K"), "a line is wider than the terminal"
            assert process.wait(TIMEOUT) == 0
    assert (tmp_path / "back").read_bytes() == (tree / "one").read_bytes()


def test_an_import_says_how_much_was_read(tmp_path: Path) -> None:
    """An archive in a pipe shows what has come, one in a file shows of how many, and then that it is unpacked."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        entry = tarfile.TarInfo("data")
        entry.size = 4 << 20
        archive.addfile(entry, io.BytesIO(os.urandom(4 << 20)))
    packed = held.getvalue()
    with errors_on_terminal("-m", "hutch.cli.main", "image", "import", "-", "piped") as (process, screen):
        assert process.stdin is not None
        process.stdin.write(packed[: 3 << 20])
        process.stdin.flush()
        read_until(screen, b"importing -: ")
        read_until(screen, b" MB")
        process.stdin.write(packed[3 << 20 :])
        process.stdin.close()
        assert process.wait(TIMEOUT) == 0
    (tmp_path / "root.tar").write_bytes(packed)
    words = ("image", "import", str(tmp_path / "root.tar"), "whole")
    with errors_on_terminal("-c", AT_ONCE, *words) as (process, screen):
        read_until(screen, b" MB read, unpacking its layers")
        assert process.wait(TIMEOUT) == 0
    silent = hutch("image", "import", str(tmp_path / "root.tar"), "silent")
    assert (silent.returncode, silent.stderr) == (0, b""), "progress is for terminals"
