"""Output that is redrawn on a terminal: a table that is watched, and the progress of long work."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from hutch.cli.output import byte_size
from hutch.model.durations import format_seconds

REDRAW_SECONDS = 1.0
PROGRESS_DELAY_SECONDS = 0.5
"""Work that is done sooner shows no progress."""


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

    def report(self, done: int, total: int) -> None:
        """Take over both numbers; a thread may call this."""
        self.done, self.total = done, total

    def text(self, what: str, seconds: float) -> str:
        text = f"{what}: {format_seconds(int(seconds))}"
        if self.total and not self.done:
            text += f", {byte_size(self.total)} in all"
        elif self.total:
            text += f", {byte_size(self.done)} of {byte_size(self.total)} ({100 * self.done // self.total} %)"
        elif self.done:
            text += f", {byte_size(self.done)}"
        return text


@asynccontextmanager
async def progress(what: str) -> AsyncIterator[Progress]:
    """Show one line on standard error while the work goes on; without a terminal, nothing."""
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
    await asyncio.sleep(PROGRESS_DELAY_SECONDS)
    try:
        while True:
            sys.stderr.write(f"\r\x1b[K{state.text(what, time.monotonic() - began)}")
            sys.stderr.flush()
            await asyncio.sleep(0.2)
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
