"""Output that lives: a table that is drawn again in its place, and progress of long work. Only on a terminal."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from hutch.model.durations import shown

REDRAW_SECONDS = 1.0
PATIENCE_SECONDS = 0.5
"""Work that is done sooner shows no progress."""


class Board:
    """Lines on the terminal that replace those drawn before."""

    def __init__(self) -> None:
        self._height = 0

    def draw(self, lines: Sequence[str]) -> None:
        width, height = os.get_terminal_size(1)
        fitting = [line[: max(1, width - 1)] for line in lines[: max(1, height - 1)]]
        # Up to the first line drawn last time, and everything from there erased.
        back = f"\x1b[{self._height}A\r\x1b[J" if self._height else ""
        sys.stdout.write(back + "".join(f"{line}\n" for line in fitting))
        sys.stdout.flush()
        self._height = len(fitting)


class Progress:
    """How much of the work is done, as far as it can be told."""

    def __init__(self) -> None:
        self.done = 0
        self.total = 0

    def text(self, what: str, seconds: float) -> str:
        told = f"{what}: {shown(int(seconds))}"
        if self.total:
            told += f", {amount(self.done)} of {amount(self.total)} ({100 * self.done // self.total} %)"
        elif self.done:
            told += f", {amount(self.done)}"
        return told


@asynccontextmanager
async def progress(what: str) -> AsyncIterator[Progress]:
    """One line on standard error while the work goes on, erased when it is done; nothing without a terminal."""
    state = Progress()
    if not os.isatty(2):
        yield state
        return
    drawing = asyncio.create_task(_draw(what, state))
    try:
        yield state
    finally:
        drawing.cancel()
        with suppress(asyncio.CancelledError):
            await drawing


async def _draw(what: str, state: Progress) -> None:
    began = time.monotonic()
    await asyncio.sleep(PATIENCE_SECONDS)
    try:
        while True:
            sys.stderr.write(f"\r\x1b[K{state.text(what, time.monotonic() - began)}")
            sys.stderr.flush()
            await asyncio.sleep(0.2)
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def amount(count: float) -> str:
    """Bytes as people say them."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
