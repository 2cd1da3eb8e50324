"""How far a pull is: bars that move on a terminal, a line for each layer elsewhere, nothing beside JSON."""

import os
import sys
import threading
import time
from types import TracebackType
from typing import Self

from hutch.cli.tables import amount
from hutch.images.pull import News

_BAR = 24
_REDRAW_SECONDS = 0.1
_SHORT = 12
_WORDS = {
    "waiting": "waiting",
    "fetching": "fetching",
    "unpacking": "unpacking",
    "done": "done",
    "there": "already here",
}


class Watch:
    """A context; give its `tell` to the pull."""

    def __init__(self, *, quiet: bool) -> None:
        self._terminal = not quiet and os.isatty(2) and os.environ.get("TERM") != "dumb"
        self._quiet = quiet
        self._layers: dict[str, News] = {}
        # Protects what was told: layers come from several threads, and one of them draws.
        self._lock = threading.Lock()
        self._drawn = 0
        self._last = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._terminal:
            with self._lock:
                self._draw()

    def tell(self, news: News) -> None:
        if self._quiet:
            return
        with self._lock:
            before = self._layers.get(news.layer)
            self._layers[news.layer] = news
            if not self._terminal:
                if (before is None or before.step != news.step) and news.step != "waiting":
                    print(f"hutch: {self._line(news)}", file=sys.stderr, flush=True)
            elif time.monotonic() - self._last > _REDRAW_SECONDS:
                self._draw()

    def _draw(self) -> None:
        width, height = os.get_terminal_size(2)
        lines = [self._bar(news)[: max(1, width - 1)] for news in self._layers.values()][: max(1, height - 1)]
        back = f"\x1b[{self._drawn}A\r\x1b[J" if self._drawn else ""
        sys.stderr.write(back + "".join(f"{line}\n" for line in lines))
        sys.stderr.flush()
        self._drawn = len(lines)
        self._last = time.monotonic()

    def _bar(self, news: News) -> str:
        if news.step != "fetching" or not news.total:
            return self._line(news)
        full = _BAR * min(news.done, news.total) // news.total
        return f"{_short(news.layer)}  [{'#' * full}{' ' * (_BAR - full)}] {amount(news.done)} of {amount(news.total)}"

    def _line(self, news: News) -> str:
        return f"{_short(news.layer)}  {_WORDS[news.step]}, {amount(news.total)}"


def _short(digest: str) -> str:
    return digest.partition(":")[2][:_SHORT]
