"""The caller's terminal: its size, and raw mode while a box's terminal is shown in it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

DEFAULT_SIZE = (24, 80)


def size(fd: int) -> tuple[int, int]:
    """(rows, columns); a terminal that does not say gets the usual 24 by 80."""
    try:
        columns, rows = os.get_terminal_size(fd)
    except OSError:
        return DEFAULT_SIZE
    return (rows, columns) if rows and columns else DEFAULT_SIZE


@contextmanager
def raw(fd: int) -> Iterator[None]:
    """Every key goes to the box, Ctrl-C too; the terminal is as it was afterwards, whatever happened."""
    import termios  # a library each, which commands without a terminal need not load
    import tty

    before = termios.tcgetattr(fd)
    try:
        # TCSADRAIN keeps what was typed ahead, and shows what was written before the mode changes.
        tty.setraw(fd, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
