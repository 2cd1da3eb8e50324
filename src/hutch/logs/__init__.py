"""Logging on the standard library: events with fields, the operation's id, and no secrets.

    log("keeper").warning("box not ended", box=box_id, error=error)
    → 2026-01-02T03:04:05.678Z WARNING keeper: box not ended box=k3x… error="Unavailable: …" op=5f0c…

Records go to `logging.getLogger("hutch.keeper")`, with secrets hidden before any handler sees them. An application
that has handlers of its own gets the records there; otherwise they are lines on stderr (`hutch.logs.formatter`).
`take_over` sends the log records of other code in a process of ours the same way. `logging` is imported with the first
record, because some of our processes never write one.
"""

import contextlib
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "off": 100}
FORMATS = ("text", "json")
HIDDEN = "***"

_SECRET_KEY = (
    r"(?i)secret|token|passw|passphrase|credential|authorization|cookie|private_?key|api_?key|(^|[^a-z])key([^a-z]|$)"
)
_API_KEY = r"(hutch_k[0-9a-f]{12}_)[\w-]{16,}"
"""An API key of a server, wherever it stands; its id may be shown."""
_ESCAPED = frozenset("\\'\"")
_SHORT = 6
"""A shorter secret is not hidden inside other text: `1` would hide every number."""

_set_up_lock = threading.Lock()
"""Protects the one handler of ours: two threads may write their first records at once."""
_operation: ContextVar[str] = ContextVar("hutch_operation", default="")


def _to_stderr(line: str) -> None:
    # A log that cannot be written (closed or broken stderr) must not break the work it reports.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(line)
        sys.stderr.flush()


class _Settings:
    level = LEVELS["warning"]
    format = "text"
    write: Callable[[str], None] = staticmethod(_to_stderr)
    ours_alone = False
    """Whether our lines are written although the application has handlers of its own."""
    applied: int | None = None
    """The level that we gave the logger `hutch`; another level is the application's choice."""
    pending = True
    """Whether the level has still to be given to the logger, because `logging` was not loaded."""
    handler: Any = None


class _Secrets:
    """Texts that no line may show, counted because two boxes may hold the same one."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._pattern: re.Pattern[str] | None = None
        # Protects the counts and the pattern built from them: boxes come and go on several threads.
        self._lock = threading.Lock()

    def change(self, texts: Collection[str], by: int) -> None:
        if not texts:
            return
        with self._lock:
            for text in texts:
                for part in _spellings(text):
                    self._counts[part] += by
            self._counts = +self._counts
            # Longest first, so that a secret that contains another one is hidden whole.
            long = sorted((text for text in self._counts if len(text) >= _SHORT), key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, long))) if long else None

    def hide(self, text: str) -> str:
        if text in self._counts:
            return HIDDEN
        if "hutch_k" in text:
            text = re.sub(_API_KEY, rf"\1{HIDDEN}", text)
        pattern = self._pattern
        return pattern.sub(HIDDEN, text) if pattern else text


_secrets = _Secrets()


def _spellings(text: str) -> set[str]:
    """List a secret, each of its lines, and how `repr` and JSON write them: a message may quote it either way."""
    plain = {part for part in (text, *text.splitlines()) if part.strip()}
    if text.isascii() and text.isprintable() and not _ESCAPED.intersection(text):
        return plain
    import json  # rarely needed

    return plain | {form for part in plain for form in (repr(part)[1:-1], json.dumps(part)[1:-1])}


def configure(*, level: str = "warning", format: str = "text", write: Callable[[str], None] | None = None) -> None:
    """Set level and format for the whole process. `write` gets whole lines, also beside an application's handlers."""
    if level not in LEVELS:
        raise ValueError(f"log level {level!r} is none of {', '.join(LEVELS)}")
    if format not in FORMATS:
        raise ValueError(f"log format {format!r} is none of {', '.join(FORMATS)}")
    _Settings.level = LEVELS[level]
    _Settings.format = format
    _Settings.write = staticmethod(write or _to_stderr)
    _Settings.ours_alone = write is not None
    _Settings.pending = True


def conceal(texts: Collection[str]) -> None:
    """Hide these texts, and each line of them, in all log records and in everything that `redact` returns."""
    _secrets.change(texts, 1)


def reveal(texts: Collection[str]) -> None:
    """Undo one `conceal`: the box that held these secrets is gone."""
    _secrets.change(texts, -1)


def redact(text: str) -> str:
    """Return the text without concealed secrets, for error messages and records."""
    return _secrets.hide(text)


def redact_field(key: str, value: object) -> object:
    """Return a value as it may be shown: hidden if its key names a secret, else without concealed texts inside."""
    if value is None or isinstance(value, bool):
        return value
    if re.search(_SECRET_KEY, key):
        return HIDDEN
    if isinstance(value, int | float):
        return value
    if isinstance(value, Mapping):
        return {redact(str(name)): redact_field(str(name), each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [redact_field("", each) for each in value]
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, BaseException):
        value = f"{type(value).__name__}: {value}" if str(value) else type(value).__name__
    return redact(str(value))


@contextlib.contextmanager
def operation(op: str = "") -> Iterator[str]:
    """Give every record inside one id: `op`, else that of the operation around it, else a new one."""
    token = _operation.set(op or _operation.get() or os.urandom(6).hex())
    try:
        yield _operation.get()
    finally:
        _operation.reset(token)


def current_operation() -> str:
    """Return the id of the operation this code runs in; empty outside of one."""
    return _operation.get()


class Event:
    """The message of a record of ours: a name and fields, both already redacted. Its text is one line."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: Mapping[str, object]) -> None:
        self.name = name
        self.fields = fields

    def __str__(self) -> str:
        from hutch.logs.formatter import text_of

        return text_of(self)


class Log:
    """Writes events of one part of the program to its logger."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def debug(self, event: str, **fields: object) -> None:
        self._write(LEVELS["debug"], event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._write(LEVELS["info"], event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write(LEVELS["warning"], event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._write(LEVELS["error"], event, fields)

    def _write(self, level: int, event: str, fields: dict[str, object]) -> None:
        if "logging" not in sys.modules and level < _Settings.level:
            return
        import logging

        logger = logging.getLogger(f"hutch.{self.name}")
        if _Settings.pending or _Settings.handler is None:
            _set_up(logging.getLogger("hutch"))
        if not logger.isEnabledFor(level):
            return
        shown = {key: redact_field(key, value) for key, value in fields.items()}
        if (op := _operation.get()) and "op" not in shown:
            shown["op"] = op
        logger.log(level, Event(redact(event), shown), stacklevel=3)


def log(name: str) -> Log:
    return Log(name)


def _set_up(logger: "logging.Logger") -> None:
    """Give the logger `hutch` our handler, and our level unless the application has set another."""
    import logging

    with _set_up_lock:
        if _Settings.handler is None:
            _Settings.handler = logging.Handler()
            _Settings.handler.emit = _emit
            logger.addHandler(_Settings.handler)
        if logger.level in (logging.NOTSET, _Settings.applied):
            logger.setLevel(_Settings.level)
            _Settings.applied = _Settings.level
        _Settings.pending = False


def _emit(record: "logging.LogRecord") -> None:
    if _Settings.ours_alone or not _application_handles(record.name):
        _write_line(record)


def _application_handles(name: str) -> bool:
    """Return whether a record reaches a handler that is not ours."""
    import logging

    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(handler is not _Settings.handler for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def _write_line(record: "logging.LogRecord") -> None:
    from hutch.logs.formatter import RedactingFormatter

    _Settings.write(RedactingFormatter(_Settings.format).format(record) + "\n")


def take_over() -> None:
    """Log what other code says in this process like our own events: loggers, warnings, and uncaught errors.

    This is for processes that are ours alone (`hutch serve`, the command line); an application that embeds Hutch keeps
    its own logging.
    """
    import logging

    others = logging.Handler(logging.WARNING)  # below that, uvicorn logs whole query strings
    others.emit = _write_line  # type: ignore[method-assign]
    logging.getLogger().handlers = [others]
    logging.getLogger("hutch").propagate = False
    logging.captureWarnings(True)
    sys.excepthook = lambda kind, error, trace: _uncaught(error, "main")
    threading.excepthook = lambda args: _uncaught(args.exc_value, args.thread.name if args.thread else "")
    sys.unraisablehook = lambda args: _uncaught(args.exc_value, repr(args.object))


def _uncaught(error: BaseException | None, where: str) -> None:
    if error is None:
        return
    import traceback

    trace = "".join(traceback.format_exception(error))
    Log("process").error("an error was not caught", where=where, error=error, trace=trace)
