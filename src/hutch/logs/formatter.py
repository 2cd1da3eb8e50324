"""Records of `logging` as one line of text or JSON, with concealed secrets hidden."""

import json
import logging
import time
import traceback

from hutch.logs import LEVELS, Event, redact, redact_field

_QUOTED = frozenset(' "=\\')


class RedactingFormatter(logging.Formatter):
    """Formats one line for each record, of our loggers and of others.

    A line holds nothing that could forge another line, and no text that was passed to `hutch.logs.conceal`.
    """

    def __init__(self, line_format: str = "text") -> None:
        super().__init__()
        self._render = _json_line if line_format == "json" else _text_line

    def format(self, record: logging.LogRecord) -> str:
        event = record.msg if isinstance(record.msg, Event) else _event_of(record)
        name = record.name.removeprefix("hutch.")
        return self._render(_utc(record), _level(record.levelno), name, event)


def _event_of(record: logging.LogRecord) -> Event:
    """Redact the record of another logger, with its traceback."""
    try:
        message = record.getMessage().strip()
    except (TypeError, ValueError, KeyError):  # the arguments do not fit their format, which still says what was meant
        message = str(record.msg)
    error = record.exc_info[1] if record.exc_info else None
    trace = {"trace": redact_field("", "".join(traceback.format_exception(error)))} if error is not None else {}
    return Event(redact(message), trace)


def _utc(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def _level(number: int) -> str:
    return next((name for name in ("error", "warning", "info") if number >= LEVELS[name]), "debug")


def _json_line(when: str, level: str, name: str, event: Event) -> str:
    line: dict[str, object] = {"time": when, "level": level, "log": name, "event": event.name}
    # A field that is called like one of ours must not replace it: a reader filters by these.
    line |= {f"field_{key}" if key in line else key: value for key, value in event.fields.items()}
    return json.dumps(line, default=str)


def _text_line(when: str, level: str, name: str, event: Event) -> str:
    return f"{when} {level.upper()} {name}: {text_of(event)}"


def text_of(event: Event) -> str:
    """Write an event and its fields as text on one line."""
    return " ".join([_one_line(event.name), *(f"{key}={_text_value(value)}" for key, value in event.fields.items())])


def _one_line(text: str) -> str:
    """Escape what a box may have written to begin a new line, move the cursor or turn the writing direction."""
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
        return json.dumps(value, separators=(",", ":"), default=str)
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return str(value)
