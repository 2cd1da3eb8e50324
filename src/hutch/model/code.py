"""Records of code interpreters: kernels, what a run showed and printed, and how it ended."""

import base64
import binascii
from enum import StrEnum

import msgspec

from hutch.model.record import Record
from hutch.model.results import Cause, Verdict

TABLE_MIME = "application/vnd.hutch.table+json"
"""A table as JSON: `{"columns": {NAME: [VALUES]}, "rows": N}`; bounded, so it may hold fewer values than rows."""
CHART_MIME = "application/vnd.hutch.chart+json"
"""What a matplotlib figure draws, as JSON: type, title, axes and elements."""
BINARY_MIMES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"})
"""Types whose value in a display is base64; the value of every other type is text."""


class Language(StrEnum):
    """The languages that kernels speak."""

    PYTHON = "python"
    JAVASCRIPT = "javascript"
    TYPESCRIPT = "typescript"
    BASH = "bash"


LANGUAGE_ALIASES = {
    "py": Language.PYTHON, "python3": Language.PYTHON, "ipython": Language.PYTHON, "js": Language.JAVASCRIPT,
    "node": Language.JAVASCRIPT, "ts": Language.TYPESCRIPT, "sh": Language.BASH, "shell": Language.BASH,
}  # fmt: skip


class Display(Record, frozen=True, kw_only=True):
    """One thing that code showed, in every form that it has: a picture, a table, a value."""

    data: dict[str, str]
    """Content by media type; base64 for `BINARY_MIMES`, JSON text for types that end in `json`, else text."""
    main: bool = False
    """Whether this is the value of the last expression."""

    @property
    def text(self) -> str:
        """The plain text form; "" if there is none."""
        return self.data.get("text/plain", "")

    def binary(self, mime: str) -> bytes:
        """Return the bytes of a form; b"" if there is none or it is not valid base64."""
        try:
            return base64.b64decode(self.data.get(mime, ""), validate=True)
        except binascii.Error:
            return b""


class CodeError(Record, frozen=True, kw_only=True):
    """The exception that ended a run."""

    name: str
    """Its class, such as `ZeroDivisionError`; `KernelDied` if the interpreter itself ended."""
    value: str = ""
    traceback: str = ""
    """Plain text without colours."""


class CodeResult(Record, frozen=True, kw_only=True):
    """What a run of code printed and showed, and how it ended."""

    kernel: str
    language: Language
    count: int = 0
    """The number of this run in its kernel, from 1; 0 if the kernel died before it could count."""
    stdout: str = ""
    stderr: str = ""
    stdout_total: int = 0
    """Characters that the code printed; more than len(stdout) if the middle was left out."""
    stderr_total: int = 0
    displays: tuple[Display, ...] = ()
    displays_dropped: int = 0
    """Displays past the bounds on their number and size."""
    error: CodeError | None = None
    verdict: Verdict = msgspec.field(default_factory=lambda: Verdict(cause=Cause.OK))
    duration_sec: float = 0.0
    notes: tuple[str, ...] = ()
    """Remarks for the caller: a new kernel, a missing package, a clamped timeout, ..."""

    @property
    def ok(self) -> bool:
        return self.verdict.cause is Cause.OK

    @property
    def value(self) -> Display | None:
        """The value of the last expression; None if the code had none."""
        return next((display for display in reversed(self.displays) if display.main), None)

    @property
    def text(self) -> str:
        """The plain text of the last expression's value; "" if the code had none."""
        return self.value.text if self.value is not None else ""


class CodePiece(Record, frozen=True, kw_only=True):
    """One piece of a run in progress: printed text, a display, an error, or at the end the whole result."""

    stream: str = ""
    """`stdout` or `stderr` if this piece is printed text."""
    text: str = ""
    display: Display | None = None
    error: CodeError | None = None
    result: CodeResult | None = None
    """Set in the last piece only; it holds what the pieces held, within the bounds of a result."""


class KernelState(StrEnum):
    IDLE = "idle"
    BUSY = "busy"
    DEAD = "dead"
    """Its process has ended; the next run starts a new one under the same name."""


class KernelInfo(Record, frozen=True, kw_only=True):
    """A kernel, as `box.kernels.all()` shows it."""

    id: str
    language: Language
    cwd: str
    """The directory in which it started; "" is the box's working directory."""
    state: KernelState
    job: str
    """The job that runs it."""
    started_at: float
    """Unix time."""
    warm: bool = False
    """Whether it was forked from a prepared interpreter instead of being started."""
