"""File operations as the loop sees them: they run in short steps beside others, and a failure has a code.

An operation is called with the request and the workdir, and is one of three things:

- a plain function, which returns the reply;
- a generator of steps (`Steps`): it yields what the loop should do and returns the reply. Closing it (on CANCEL or a
  lost connection) runs its `finally` blocks, which undo what is half done;
- a `Consumer`, which receives the content that the host sends.
"""

import errno
import os
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol

Request = dict[str, Any]
Reply = dict[str, Any]


class Readable(NamedTuple):
    """Continue when this descriptor is readable, or at `until` (monotonic seconds; None means no time limit)."""

    descriptor: int
    until: float | None = None


Step = bytes | Readable | None
"""bytes are sent as DATA when there is credit, None lets other operations run, and Readable waits."""
Steps = Generator[Step, None, Reply]

STEP_SECONDS = 0.005
"""Time that an operation may hold the loop between two steps, approximately."""
BLOCK = 256 << 10
"""Bytes of content that one step moves."""


class Consumer(Protocol):
    """An operation that receives content. Either `end` or `abort` is called once, and nothing after it."""

    def data(self, content: bytes) -> None: ...

    def end(self) -> Reply | Steps:
        """Finish and answer; all content has arrived."""

    def abort(self) -> None:
        """Undo what is half done; the host disconnected or cancelled."""


Operation = Callable[[Request, str], Reply | Steps | Consumer]


MAX_MESSAGE = 6000
"""Longest message in characters; the longest possible path fits into it."""


class Failure(Exception):
    """An operation's failure, which the loop sends as an ERROR frame. `code` is one of the codes in hutch.errors."""

    def __init__(self, code: str, message: str, *, remedy: str = "", **details: Any) -> None:
        super().__init__(message)
        self.code = code
        # A request may name a path of megabytes; the host would reject an answer that repeats it.
        self.message = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "…"
        self.remedy = remedy
        self.details = details

    def to_wire(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "details": self.details, "remedy": self.remedy}


_CODES = {
    errno.ENOENT: "file_not_found",
    errno.EEXIST: "file_exists",
    errno.EACCES: "file_denied",
    errno.EPERM: "file_denied",
    errno.EISDIR: "is_directory",
    errno.ENOTDIR: "not_directory",
}
_REMEDIES = {
    errno.ENOSPC: "remove files, or ask for a larger disk_mb",
    errno.EDQUOT: "remove files, or ask for a larger disk_mb",
    errno.EROFS: "write under the workdir, or ask for a writable root",
    errno.ENOTEMPTY: "remove it with recursive",
    errno.EAGAIN: "no process is free: end jobs, or run a command, which clears away what ended ones have left behind",
    errno.ELOOP: "links of /proc to a process's root, directory or files are refused; name the file itself",
}


def failure(error: OSError, what: str, path: str) -> Failure:
    """Turn an OSError into a failure that says what was tried, on which path, and why it failed."""
    path = path[:MAX_MESSAGE]
    number = error.errno or 0
    name = errno.errorcode.get(number, str(number))
    reason = os.strerror(number) if number else str(error)
    message = f"cannot {what} {path!r}: {reason}"
    code = _CODES.get(number, "file_failed")
    return Failure(code, message, remedy=_REMEDIES.get(number, ""), errno=number, name=name, path=path)


def text_field(request: Request, key: str) -> str:
    value = request.get(key)
    if not isinstance(value, str):
        raise Failure("invalid", f"{key} must be text, not {value!r}")
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise Failure("invalid", f"{key} {value!r} cannot be encoded") from None
    return value


def number_field(request: Request, key: str, default: int, *, least: int = 0) -> int:
    value = request.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 63:
        raise Failure("invalid", f"{key} must be an integer of at least {least}, not {value!r}")
    return value


def optional_number_field(request: Request, key: str, *, least: int = 0) -> int | None:
    return None if request.get(key) is None else number_field(request, key, 0, least=least)
