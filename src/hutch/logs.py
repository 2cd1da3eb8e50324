"""Structured logs: an event and its fields on one line of stderr, with the operation's id, without secrets.

    log("keeper").warning("box not ended", box=box_id, error=error)
    → 2026-01-02T03:04:05.678Z WARNING keeper: box not ended box=k3x… error="Unavailable: …" op=5f0c…

The standard library's logging costs more to import than a box costs to make, so this stands alone. Every module of ours
logs through it (tests/test_logs.py holds that); `take_over` sends what others log in a process of ours the same way.
"""

import contextlib
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "off": 100}
FORMATS = ("text", "json")
HIDDEN = "***"

_SECRET_KEY = (
    r"(?i)secret|token|passw|passphrase|credential|authorization|cookie|private_?key|api_?key|(^|[^a-z])key([^a-z]|$)"
)
_API_KEY = r"(hutch_k[0-9a-f]{12}_)[\w-]{16,}"
"""A key of a server, wherever somebody has put it: its id may be told."""
_QUOTED = frozenset(' "=\\')
_ESCAPED = frozenset("\\'\"")
_SHORT = 6
"""Of a shorter secret no occurrence inside other text is hidden: `1` would blot out every number."""

_operation: ContextVar[str] = ContextVar("hutch_operation", default="")


def _to_stderr(line: str) -> None:
    # A log that cannot be written (closed or broken stderr) must not break the work it tells about.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(line)
        sys.stderr.flush()


class _Settings:
    threshold = LEVELS["warning"]
    format = "text"
    write: Callable[[str], None] = staticmethod(_to_stderr)


class _Secrets:
    """Texts that no line may show, counted, because two boxes may hold the same one."""

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
    """A secret, each of its lines, and how Python's `repr` and JSON write them: a message may quote it either way."""
    plain = {part for part in (text, *text.splitlines()) if part.strip()}
    if text.isascii() and text.isprintable() and not _ESCAPED.intersection(text):
        return plain
    import json  # rarely needed

    return plain | {form for part in plain for form in (repr(part)[1:-1], json.dumps(part)[1:-1])}


def configure(*, level: str = "warning", format: str = "text", write: Callable[[str], None] = _to_stderr) -> None:
    """For the whole process. `write` gets whole lines."""
    if level not in LEVELS:
        raise ValueError(f"log level {level!r} is none of {', '.join(LEVELS)}")
    if format not in FORMATS:
        raise ValueError(f"log format {format!r} is none of {', '.join(FORMATS)}")
    _Settings.threshold = LEVELS[level]
    _Settings.format = format
    _Settings.write = staticmethod(write)


def conceal(texts: Collection[str]) -> None:
    """From now on these texts, and each line of them, appear in no log line and in nothing that `redact` has seen."""
    _secrets.change(texts, 1)


def reveal(texts: Collection[str]) -> None:
    """Undo one `conceal`: the box that held these secrets is gone."""
    _secrets.change(texts, -1)


def redact(text: str) -> str:
    """The text without concealed secrets, for error messages and records."""
    return _secrets.hide(text)


def redact_field(key: str, value: object) -> object:
    """A value as it may be shown: hidden if its key tells a secret, else without concealed ones at any depth."""
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
    """Every line written inside carries one id: `op`, else the one of the operation around it, else a new one."""
    token = _operation.set(op or _operation.get() or os.urandom(6).hex())
    try:
        yield _operation.get()
    finally:
        _operation.reset(token)


def current_operation() -> str:
    """The id of the operation this code runs in; empty outside of one."""
    return _operation.get()


def take_over() -> None:
    """Send what other code says in this process through this log: the standard library's loggers, warnings, and errors
    that nobody caught, in any thread. Concealed secrets are hidden there as in every line.

    For processes that are ours alone (`hutch serve`, the command line); an application that embeds Hutch keeps its own.
    """
    import logging

    others = logging.Handler(logging.WARNING)  # below that, uvicorn tells whole query strings
    others.emit = _emit  # type: ignore[method-assign]
    logging.getLogger().handlers = [others]
    logging.captureWarnings(True)
    sys.excepthook = lambda kind, error, trace: _uncaught(error, "main")
    threading.excepthook = lambda args: _uncaught(args.exc_value, args.thread.name if args.thread else "")
    sys.unraisablehook = lambda args: _uncaught(args.exc_value, repr(args.object))


def _emit(record: "logging.LogRecord") -> None:
    error = record.exc_info[1] if record.exc_info else None
    fields = {"trace": _traceback(error)} if error is not None else {}
    try:
        message = record.getMessage().strip()
    except (TypeError, ValueError, KeyError):  # the arguments do not fit their format, which still says what was meant
        message = str(record.msg)
    log = Log(record.name)
    (log.error if record.levelno >= LEVELS["error"] else log.warning)(message, **fields)


def _uncaught(error: BaseException | None, where: str) -> None:
    if error is not None:
        Log("process").error("an error was not caught", where=where, error=error, trace=_traceback(error))


def _traceback(error: BaseException) -> str:
    import traceback

    return "".join(traceback.format_exception(error))


class Log:
    """Writes events of one part of the program."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def debug(self, event: str, **fields: object) -> None:
        self._write("debug", event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._write("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._write("error", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, object]) -> None:
        if LEVELS[level] < _Settings.threshold:
            return
        shown = {key: redact_field(key, value) for key, value in fields.items()}
        if (op := _operation.get()) and "op" not in shown:
            shown["op"] = op
        render = _json_line if _Settings.format == "json" else _text_line
        _Settings.write(render(_now(), level, self.name, redact(event), shown))


def log(name: str) -> Log:
    return Log(name)


def _now() -> str:
    seconds, millis = divmod(time.time_ns() // 1_000_000, 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{millis:03d}Z"


def _json_line(when: str, level: str, name: str, event: str, fields: dict[str, object]) -> str:
    import json

    line = {"time": when, "level": level, "log": name, "event": event}
    # A field that is called like one of ours must not replace it: a reader filters by these.
    line |= {f"field_{key}" if key in line else key: value for key, value in fields.items()}  # type: ignore[misc]
    return json.dumps(line, default=str) + "\n"


def _text_line(when: str, level: str, name: str, event: str, fields: dict[str, object]) -> str:
    parts = [f"{when} {level.upper()} {name}: {_one_line(event)}"]
    parts += [f"{key}={_text_value(value)}" for key, value in fields.items()]
    return " ".join(parts) + "\n"


def _one_line(text: str) -> str:
    """What a box wrote may stand in a line: it must not begin one of its own, move the cursor or turn the writing."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def _text_value(value: object) -> str:
    text = value if isinstance(value, str) else _compact(value)
    if text and text.isprintable() and _QUOTED.isdisjoint(text):
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_one_line(quoted)}"'


def _compact(value: object) -> str:
    if isinstance(value, dict | list):
        import json

        return json.dumps(value, separators=(",", ":"), default=str)
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return str(value)
