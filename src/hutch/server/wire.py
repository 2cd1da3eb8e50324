"""What goes over the wire where it is no record of the model: errors, output as text, lines of streams, the form of a
spec."""

from typing import Any, Literal

import msgspec

from hutch.model.limits import LimitsAsked
from hutch.model.record import Record
from hutch.model.results import Usage, Verdict
from hutch.model.spec import Mount, Spec, Workspace


class Error(Record, frozen=True, kw_only=True):
    """Every error of every route."""

    code: str
    """What programs branch on."""
    message: str
    op: str
    """The operation that failed."""
    retryable: bool
    """The same request may succeed later."""
    retry_after: float | None
    """Seconds after which to try again, where that is known."""
    details: dict[str, Any]
    remedy: str
    """What to do about it; may be empty."""


class Health(Record, frozen=True, kw_only=True):
    ok: bool


class Ready(Record, frozen=True, kw_only=True):
    ready: bool


class ExecResult(Record, frozen=True, kw_only=True):
    """What a command left behind, whatever it did."""

    job_id: str
    exit_code: int | None
    """null: it did not exit by itself (a signal ended it)."""
    signal: int | None
    stdout: str
    stdout_base64: str | msgspec.UnsetType = msgspec.UNSET
    """Every byte; only where the text would lose some. Likewise of stderr."""
    stderr: str
    stderr_base64: str | msgspec.UnsetType = msgspec.UNSET
    stdout_total: int
    """Bytes the command wrote; more than are here when the middle was left out."""
    stderr_total: int
    stdout_truncated: bool
    stderr_truncated: bool
    lingering: bool
    """Descendants still held the output open when the command had ended; they were not waited for."""
    verdict: Verdict
    usage: Usage
    notes: tuple[str, ...]
    """What the caller should know: clamped timeouts, a replaced box, …"""


class OutputChunk(Record, frozen=True, kw_only=True):
    """A piece of a job's output, and where to go on reading."""

    text: str
    text_base64: str | msgspec.UnsetType = msgspec.UNSET
    """Every byte; only where the text would lose some."""
    cursor: int
    """Pass it to the next read of the same stream."""
    eof: bool
    dropped: int
    """Bytes between the cursor given and the first byte here that are lost."""


class ExecLine(Record, frozen=True, kw_only=True):
    """One line of a command's stream: a piece of output, or the end, which is a result or an error."""

    stream: Literal["stdout", "stderr"] | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    result: ExecResult | msgspec.UnsetType = msgspec.UNSET
    error: Error | msgspec.UnsetType = msgspec.UNSET


class WatchLine(Record, frozen=True, kw_only=True):
    """One line of a watch: that it is in place, a change, or the error that ended it."""

    watching: bool | msgspec.UnsetType = msgspec.UNSET
    path: str | msgspec.UnsetType = msgspec.UNSET
    kind: str | msgspec.UnsetType = msgspec.UNSET
    """created | modified | deleted | moved_from | moved_to | overflow"""
    directory: bool | msgspec.UnsetType = msgspec.UNSET
    error: Error | msgspec.UnsetType = msgspec.UNSET


def _spec_form() -> type[msgspec.Struct]:
    """The flat, forgiving form that `hutch.model.arguments` takes, from the records it makes of it."""
    forgiving: dict[str, Any] = {
        "workspace": str | Workspace,
        "mounts": tuple[str | Mount, ...],
    }
    fields = [
        (field.name, forgiving.get(field.name, field.type) | None, msgspec.field(default=None))
        for kind in (Spec, LimitsAsked)
        for field in msgspec.structs.fields(kind)
    ]
    return msgspec.defstruct("SpecForm", fields, kw_only=True, forbid_unknown_fields=True, namespace={
        "__doc__": "What a box is asked to be; what is left out, the profile decides. Limits may stand here or in "
        "`limits`, a mount may be `SOURCE:TARGET[:ro|rw]`.",
        "__noted_in__": (Spec, LimitsAsked),
    })  # fmt: skip


SpecForm = _spec_form()
