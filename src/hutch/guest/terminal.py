"""Pseudo-terminals: a pair, its size, and the file actions that make it the child's controlling terminal."""

import fcntl
import os
import struct
import termios

_SIZE = struct.Struct("HHHH")


def open_pair(rows: int, cols: int) -> tuple[int, int]:
    """Master (not blocking) and slave, neither the guest's own controlling terminal."""
    master, slave = os.openpty()
    try:
        os.set_blocking(master, False)
        resize(master, rows, cols)
    except (OSError, struct.error):
        os.close(master)
        os.close(slave)
        raise
    return master, slave


def resize(master: int, rows: int, cols: int) -> None:
    """The kernel sends SIGWINCH to the foreground process group."""
    fcntl.ioctl(master, termios.TIOCSWINSZ, _SIZE.pack(rows, cols, 0, 0))


def child_actions(slave: int) -> list[tuple[int, ...] | tuple[int, int, str, int, int]]:
    """posix_spawn runs them after setsid: a session leader that opens a terminal gets it as its own, tty_ioctl(4)."""
    return [
        (os.POSIX_SPAWN_OPEN, 0, os.ttyname(slave), os.O_RDWR, 0),
        (os.POSIX_SPAWN_DUP2, 0, 1),
        (os.POSIX_SPAWN_DUP2, 0, 2),
    ]
