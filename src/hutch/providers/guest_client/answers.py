"""The types of a guest's answers. An answer that does not fit means a broken guest, and never crashes the keeper."""

from typing import Any, Literal, TypeVar

import msgspec

from hutch.errors import BoxBroken


class Started(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    pid: int
    command: list[str]
    started_at: float


class Cleared(msgspec.Struct, frozen=True, kw_only=True):
    """The number of processes that were killed to make room."""

    cleared: int


class Read(msgspec.Struct, frozen=True, kw_only=True):
    cursor: int
    eof: bool
    dropped: int


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """The output that a follower asked for and that is lost."""

    stream: Literal["stdout", "stderr"]
    skipped: int


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that a listing adds to a job's state."""

    command: list[str]
    name: str
    pid: int
    pty: bool
    started_at: float
    timeout_sec: float | None = None


class CpuTime(msgspec.Struct, frozen=True, kw_only=True):
    cpu_user_sec: float
    cpu_system_sec: float


Shape = TypeVar("Shape")


def checked(answer: Any, shape: type[Shape]) -> Shape:
    try:
        return msgspec.convert(answer, type=shape)
    except msgspec.ValidationError as error:
        raise BoxBroken(f"the guest's answer makes no sense: {error}") from error


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that says only that the operation worked."""


class Digest(msgspec.Struct, frozen=True, kw_only=True):
    digest: str


class Existence(msgspec.Struct, frozen=True, kw_only=True):
    exists: bool


class LinesEnd(msgspec.Struct, frozen=True, kw_only=True):
    eof: bool


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """The reasons why a search is not complete."""

    notes: list[str]


class SearchProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress that a search reports between its hits, and with `done` after the last."""

    searched: int = 0
    notes: list[str] = []
    done: bool = False
    failed: dict[str, Any] | None = None


class SearchEnd(msgspec.Struct, frozen=True, kw_only=True):
    timed_out: bool


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """The result of copying a tree."""

    files: int
    bytes: int
    skipped: list[str]
