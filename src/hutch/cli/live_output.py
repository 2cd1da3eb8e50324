"""Output that is redrawn on a terminal: a table that is watched, and the progress of long work."""

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

from hutch.cli.output import byte_size
from hutch.model.units import format_seconds

REDRAW_SECONDS = 1.0
PROGRESS_DELAY_SECONDS = 0.5
"""Work that is done sooner shows no progress."""
REDRAW_PROGRESS_SECONDS = 0.2


class LiveTable:
    """Lines on the terminal that replace those drawn before."""

    def __init__(self) -> None:
        self._height = 0

    def draw(self, lines: Sequence[str]) -> None:
        width, height = os.get_terminal_size(1)
        fitting = [line[: max(1, width - 1)] for line in lines[: max(1, height - 1)]]
        # Move up to the first line that was drawn last time, and erase everything from there.
        back = f"\x1b[{self._height}A\r\x1b[J" if self._height else ""
        sys.stdout.write(back + "".join(f"{line}\n" for line in fitting))
        sys.stdout.flush()
        self._height = len(fitting)


class Progress:
    """How many bytes of the work are done, and of how many if that is known."""

    def __init__(self) -> None:
        self.done = 0
        self.total = 0
        self.last_step = ""
        """What is done after the last byte, if that takes long."""

    def report(self, done: int, total: int) -> None:
        """Take over both numbers; a thread may call this."""
        self.done, self.total = done, total

    def add(self, count: int) -> None:
        """Count more bytes; those that only frame a stream never make it more than all."""
        done = self.done + count
        self.done = min(done, self.total) if self.total else done

    def text(self, seconds: float) -> str:
        text = format_seconds(int(seconds))
        if self.total and not self.done:
            text += f", {byte_size(self.total)} in all"
        elif self.last_step and self.done == self.total:
            text += f", {byte_size(self.total)} read, {self.last_step}"
        elif self.total:
            text += f", {byte_size(self.done)} of {byte_size(self.total)} ({100 * self.done // self.total} %)"
        elif self.done:
            text += f", {byte_size(self.done)}"
        return text


@contextmanager
def progress(what: str) -> Iterator[Progress]:
    """Show one line on standard error while the work runs; without a terminal, nothing."""
    state = Progress()
    if not os.isatty(2):
        yield state
        return
    done = threading.Event()
    # A thread draws, because some work blocks this one.
    drawing = threading.Thread(target=_draw, args=(what, state, done), name="hutch-progress", daemon=True)
    drawing.start()
    try:
        yield state
    finally:
        done.set()
        drawing.join()


def _draw(what: str, state: Progress, done: threading.Event) -> None:
    began = time.monotonic()
    if done.wait(PROGRESS_DELAY_SECONDS):
        return
    ended = False
    while not ended:
        ended = done.wait(REDRAW_PROGRESS_SECONDS)
        sys.stderr.write(f"\r\x1b[K{_fitting(what, state.text(time.monotonic() - began))}")
        sys.stderr.flush()
    sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()


def _fitting(what: str, numbers: str) -> str:
    """Shorten what is said about the work to the width of the terminal: a line that wraps could not be redrawn."""
    room = max(10, os.get_terminal_size(2).columns - len(numbers) - 3)
    shown = what if len(what) <= room else f"{what[: room - 1]}…"
    return f"{shown}: {numbers}"


class CountedFile:
    """A file that reports how much of it was read."""

    def __init__(self, file: BinaryIO, state: Progress) -> None:
        self._file = file
        self._state = state

    def read(self, count: int = -1, /) -> bytes:
        data = self._file.read(count)
        self._state.add(len(data))
        return data
