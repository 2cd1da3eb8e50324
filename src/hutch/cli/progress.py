"""One line on standard error that shows how far a long operation is, if somebody looks at it."""

import sys
import time
from types import TracebackType
from typing import Self

from hutch.cli.output import byte_size

FIRST_SECONDS = 0.5
"""Short operations show nothing."""
INTERVAL_SECONDS = 0.1


class ProgressLine:
    """Redraws one line. It writes nothing where standard error is no terminal."""

    def __init__(self, what: str, *, quiet: bool = False) -> None:
        self._what = what
        self._shown = not quiet and sys.stderr.isatty()
        self._next = time.monotonic() + FIRST_SECONDS
        self._drawn = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def show(self, done: int, total: int = 0) -> None:
        """Show the bytes done, and the share of the total where it is known. Any thread may call this."""
        now = time.monotonic()
        if not self._shown or now < self._next:
            return
        self._next, self._drawn = now + INTERVAL_SECONDS, True
        share = f" of {byte_size(total)} ({100 * done // total} %)" if total else ""
        sys.stderr.write(f"\r\x1b[K{self._what}: {byte_size(done)}{share}")
        sys.stderr.flush()
