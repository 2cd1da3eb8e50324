"""How a file operation runs beside others on one loop: in short steps, and its failure has a code.

An operation is called with the request and the workdir, and is one of three things:

- a plain function: it returns the reply;
- a generator of steps (`Steps`): what it yields tells the loop what it wants, what it returns is the reply. Closing it
  (CANCEL, or the connection is lost) runs its `finally` blocks, which undo what is half done;
- a `Consumer`: it is given the content that the host sends.
"""

import errno
import os
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol

Request = dict[str, Any]
Reply = dict[str, Any]


class Readable(NamedTuple):
    """Go on when this descriptor can be read, or at `until` (monotonic seconds; None: only then)."""

    descriptor: int
    until: float | None = None


Step = bytes | Readable | None
"""bytes: send them as DATA when there is credit. None: let others run. Readable: wait."""
Steps = Generator[Step, None, Reply]

STEP_SECONDS = 0.005
"""About how long an operation may hold the loop between two steps."""
BLOCK = 256 << 10
"""Bytes of content moved in one step."""


class Consumer(Protocol):
    """An operation that is given content. `end` or `abort` is called once, and nothing after it."""

    def data(self, content: bytes) -> None: ...

    def end(self) -> Reply | Steps:
        """All content was given: finish, and answer."""

    def abort(self) -> None:
        """The host is gone or has changed its mind: leave nothing half done."""


Operation = Callable[[Request, str], Reply | Steps | Consumer]


MAX_MESSAGE = 6000
"""Characters: room for the longest path there can be."""


class Failure(Exception):
    """An operation failed; the loop sends it as an ERROR frame. `code` is one of the codes of hutch.errors."""

    def __init__(self, code: str, message: str, *, remedy: str = "", **details: Any) -> None:
        super().__init__(message)
        self.code = code
        # A request may name a path of megabytes; the answer must not be too large to be believed.
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
    """The kernel's answer as a failure that says what was tried, on which path, and why it did not work."""
    path = path[:MAX_MESSAGE]
    number = error.errno or 0
    name = errno.errorcode.get(number, str(number))
    reason = os.strerror(number) if number else str(error)
    message = f"cannot {what} {path!r}: {reason}"
    code = _CODES.get(number, "file_failed")
    return Failure(code, message, remedy=_REMEDIES.get(number, ""), errno=number, name=name, path=path)


def text(request: Request, key: str) -> str:
    value = request.get(key)
    if not isinstance(value, str):
        raise Failure("invalid", f"{key} must be a text, not {value!r}")
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise Failure("invalid", f"{key} {value!r} is not a text that bytes could stand for") from None
    return value


def number(request: Request, key: str, default: int, *, least: int = 0) -> int:
    value = request.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 63:
        raise Failure("invalid", f"{key} must be a whole number from {least} on, not {value!r}")
    return value


def optional_number(request: Request, key: str, *, least: int = 0) -> int | None:
    return None if request.get(key) is None else number(request, key, 0, least=least)
