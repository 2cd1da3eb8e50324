"""Checkpoints of a box's files, what differs between two of them, and what came of a merge or an attempt."""

from enum import StrEnum

from hutch.errors import Unsupported
from hutch.model.boxes import BoxInfo
from hutch.model.ids import BoxId
from hutch.model.record import Record
from hutch.model.results import Result


class Way(StrEnum):
    """How a state of the files was frozen, which decides what it cost."""

    SWITCH = "switch"
    """The files went on in a new layer: a few milliseconds, however many there are."""
    COPY = "copy"
    """Processes ran, so the box stood still while what it had changed was copied."""
    COMMIT = "commit"
    """The engine switches no layers, so all that the box had changed was copied to a volume of the engine."""


class Checkpoint(Record, frozen=True, kw_only=True):
    """A state of a box's files to which it can go back."""

    id: str
    box_id: BoxId
    name: str = ""
    created_at: float
    way: Way
    automatic: bool = False
    """Whether a command caused it (`auto_checkpoint`)."""
    left_out: tuple[str, ...] = ()
    """Directories of the box that are not part of it, because they lie on the host or in a volume."""


class ChangeKind(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class Change(Record, frozen=True, kw_only=True):
    """One path that differs between two states."""

    path: str
    kind: ChangeKind
    type: str
    """file | directory | link | fifo | socket | device | other, of the later state unless it was removed"""
    size_before: int | None = None
    """Bytes of a file; None if it did not exist."""
    size_after: int | None = None
    mode_before: int | None = None
    mode_after: int | None = None
    text: str | None = None
    """A unified diff, if it was asked for; None if the content is not text, or too long."""


class Diff(Record, frozen=True, kw_only=True):
    """What differs between two states of a box's files; "" stands for the present one."""

    box_id: BoxId
    start: str
    end: str
    changes: tuple[Change, ...]
    truncated: bool = False
    """Whether there are more changes than are listed."""
    left_out: tuple[str, ...] = ()
    """Directories that were not compared, because they lie on the host or in a volume."""


class Forks(Record, frozen=True, kw_only=True):
    """The boxes that a fork has made."""

    boxes: tuple[BoxInfo, ...]


class Merge(Record, frozen=True, kw_only=True):
    """The changes of a fork that its parent has now."""

    box_id: BoxId
    fork: BoxId
    paths: tuple[str, ...]
    checkpoint: str
    """The checkpoint of the parent from before the merge."""


class Attempt(Record, frozen=True, kw_only=True):
    """A command whose changes were kept if it succeeded, and undone if not."""

    result: Result
    kept: bool
    diff: Diff
    """What the command changed, also if that was undone."""
    checkpoint: str
    """The checkpoint from before the command."""


class Rollback(Record, frozen=True, kw_only=True):
    """A box whose files are as they were at a checkpoint."""

    box_id: BoxId
    checkpoint: str
    left_out: tuple[str, ...] = ()
    """Directories that were not rolled back, because they lie on the host or in a volume."""


def no_live_fork() -> Unsupported:
    """The error for a fork that should carry running kernels along."""
    return Unsupported(
        "only boxes of the native engine can be forked with their kernels", op="fork",
        remedy="leave out kernel, and run in each fork what it needs",
    )  # fmt: skip
