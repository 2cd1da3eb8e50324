"""A circuit breaker for each engine: one that fails again and again is left alone for a while.

Only the engine's own failures count. After `COOL_SECONDS` one caller may try; its success closes the breaker.
"""

import time

FAILURES = 3
"""In a row, until the engine is left alone."""
COOL_SECONDS = 30.0


class Breaker:
    """Of one engine."""

    def __init__(self) -> None:
        self._failures = 0
        self._opened = 0.0
        self._reason = ""

    def failed(self, reason: str) -> None:
        self._failures += 1
        self._reason = reason
        if self._failures >= FAILURES:
            self._opened = time.monotonic()

    def worked(self) -> None:
        self._failures, self._opened, self._reason = 0, 0.0, ""

    def open(self) -> str:
        """Why the engine is left alone now; empty: it may be tried. Whoever asks when the time is over is the one
        who tries: the others go on waiting for what comes of it."""
        if not self._opened:
            return ""
        if time.monotonic() - self._opened >= COOL_SECONDS:
            self._opened = time.monotonic()
            return ""
        return self.tripped()

    def tripped(self) -> str:
        """The same for a report, which tries nothing and so leaves the turn to a creation."""
        if not self._opened or time.monotonic() - self._opened >= COOL_SECONDS:
            return ""
        return f"it failed {self._failures} times in a row, the last time: {self._reason}"
