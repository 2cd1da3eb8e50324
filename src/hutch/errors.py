"""One error shape, every code: what happened, to what, whether to try again, and what to do about it.

A subclass exists only where a caller branches on it; some are also the builtin error a Python programmer expects
(`FileNotFoundError`, `TimeoutError`, ...). `HutchError.of` turns the wire form back into the class that was raised.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

Detail = str | int | float | bool | None | list[Any] | dict[str, Any]


class HutchError(Exception):
    """Base of every error Hutch raises on purpose."""

    code: str = "internal"
    retryable: bool = False
    remedy: str = ""

    by_code: ClassVar[dict[str, type["HutchError"]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "code" in cls.__dict__:
            # A door may have a class of its own for a code; what crosses a boundary becomes the class of this file.
            HutchError.by_code.setdefault(cls.code, cls)

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        op: str = "",
        retryable: bool | None = None,
        retry_after: float | None = None,
        details: Mapping[str, Detail] | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        if retryable is not None:
            self.retryable = retryable
        if remedy is not None:
            self.remedy = remedy
        self.op = op
        self.retry_after = retry_after
        self.details: dict[str, Detail] = dict(details or {})

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message

    def to_wire(self) -> dict[str, Detail]:
        """Return the JSON form that crosses every boundary: guest, HTTP, MCP."""
        return {
            "code": self.code,
            "message": self.message,
            "op": self.op,
            "retryable": self.retryable,
            "retry_after": self.retry_after,
            "details": self.details,
            "remedy": self.remedy,
        }

    @staticmethod
    def of(wire: Mapping[str, Any]) -> "HutchError":
        """Rebuild an error as the class that was raised; an unknown code becomes a plain HutchError that keeps it."""
        code = str(wire.get("code") or "internal")
        kind = HutchError.by_code.get(code, HutchError)
        retry_after = wire.get("retry_after")
        details = wire.get("details")
        return kind(
            str(wire.get("message") or code),
            code=code,
            op=str(wire.get("op") or ""),
            retryable=bool(wire.get("retryable", kind.retryable)),
            retry_after=float(retry_after) if isinstance(retry_after, int | float) else None,
            details=details if isinstance(details, dict) else None,
            remedy=str(wire.get("remedy") or "") or None,
        )


# --- requests -------------------------------------------------------------------------------------------------


class Invalid(HutchError, ValueError):
    """The request itself is wrong: a value, a name, a combination."""

    code = "invalid"


class ConfigError(Invalid):
    """The configuration cannot be used; the message names file, line and key."""

    code = "config"


class NotFound(HutchError, LookupError):
    """No such box, job, profile, volume, image, user."""

    code = "not_found"


class Gone(NotFound):
    """The box existed and was destroyed; details carry when and why."""

    code = "gone"


class Refused(HutchError, PermissionError):
    """Policy does not allow it: a mount outside the allow-list, a missing right, a limit that is not enforced."""

    code = "refused"


class Unauthenticated(HutchError, PermissionError):
    """A server got no key, or one that is not valid."""

    code = "unauthenticated"


class Unsupported(HutchError):
    """This provider cannot do that, and says so instead of pretending."""

    code = "unsupported"


class Conflict(HutchError):
    """The state or the spec of the box excludes the request."""

    code = "conflict"


class QuotaExceeded(HutchError):
    """The owner's quota or the machine's capacity is used up; details carry limit and use."""

    code = "quota"
    retryable = True


# --- boxes ----------------------------------------------------------------------------------------------------


class Unavailable(HutchError, ConnectionError):
    """The engine, the server or the guest cannot be reached now."""

    code = "unavailable"
    retryable = True


class Disabled(HutchError):
    """Hutch is switched off by configuration (`enabled = false`)."""

    code = "disabled"


class EngineError(HutchError):
    """The engine failed to make, change or destroy a box; details name the step."""

    code = "engine"


class BoxBroken(HutchError):
    """The guest is dead or broke the protocol; the box is kept for inspection."""

    code = "box_broken"


_NOT_RUNNABLE: dict[tuple[Detail, Detail], str] = {
    ("program", "ENOENT"): "a box has the programs of its image: `command -v NAME` in it tells whether this is one",
    ("program", "EACCES"): "make it executable (chmod +x), or give it to its interpreter: sh FILE, python3 FILE",
    ("program", "ENOEXEC"): "begin the file with #! and its interpreter, or give it to that: sh FILE, python3 FILE",
    ("cwd", None): "name a directory that the box has; without one a command starts in the workdir",
    ("arguments", "E2BIG"): "write it to a file, or to the command's input: an argument may have 128 KB, all 2 MB",
    ("arguments", None): "leave out NUL bytes, and '=' in names of variables: no program can be given these",
    ("pipes", None): "end background processes, or raise limits.open_files",
    ("process", None): "end background processes, or raise limits.pids and limits.memory_mb",
}
"""Remedies, by what was wrong and the kernel's reason, which is all that the guest reports."""


class NotRunnable(HutchError):
    """The program could not be started: missing, not executable, bad directory or user."""

    code = "not_runnable"

    def __init__(self, message: str, **rest: Any) -> None:
        super().__init__(message, **rest)
        what, number = self.details.get("what"), self.details.get("errno")
        self.remedy = self.remedy or _NOT_RUNNABLE.get((what, number)) or _NOT_RUNNABLE.get((what, None), "")


class Timeout(HutchError, TimeoutError):
    """An operation of Hutch took too long (a command's own timeout is a verdict, not an error)."""

    code = "timeout"
    retryable = True


class PortClosed(HutchError, ConnectionRefusedError):
    """Nothing accepts connections on this port of the box, or the program closed the connection."""

    code = "port_closed"
    retryable = True
    remedy = "start the program that listens on it, or wait until it does; `hutch box ports` shows what listens"


class ServerFailed(HutchError):
    """An MCP server could not be started, or ended; details name the server and the phase."""

    code = "mcp_server"
    retryable = True


class AppFailed(HutchError):
    """The program of an app box ended, or its packages could not be installed; details carry the end of its log."""

    code = "app_failed"


class LeaseLost(HutchError):
    """Another session took the box; this handle has an older epoch."""

    code = "lease_lost"


class BoxBusy(HutchError):
    """Another session holds the box now."""

    code = "busy"
    retryable = True


class HeldElsewhere(HutchError):
    """Another live keeper owns this state directory or box."""

    code = "held_elsewhere"
    retryable = True


# --- files ----------------------------------------------------------------------------------------------------


class FileMissing(HutchError, FileNotFoundError):
    code = "file_not_found"


class FileThere(HutchError, FileExistsError):
    code = "file_exists"


class FileDenied(HutchError, PermissionError):
    code = "file_denied"


class IsDirectory(HutchError, IsADirectoryError):
    code = "is_directory"


class NotDirectory(HutchError, NotADirectoryError):
    code = "not_directory"


class FileFailed(HutchError, OSError):
    """Any other answer of the kernel to a file operation; details carry errno and its name (ENOSPC, ELOOP, ...)."""

    code = "file_failed"


class FileTooLarge(HutchError):
    """The file, or the answer, is larger than this call accepts; a ranged read has no such limit."""

    code = "too_large"


class NoMatch(HutchError):
    """`edit` did not find the text, or found it more often than expected; details carry the count."""

    code = "no_match"


class FileChanged(Conflict):
    """The file is no longer what the caller read; read it again."""

    code = "file_changed"
