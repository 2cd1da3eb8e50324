"""Results of file operations: entries, matches, changes."""

from enum import StrEnum

import msgspec

from hutch.model.record import Record


class FileKind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


class FileInfo(Record, frozen=True, kw_only=True):
    """One file, not followed if it is a symlink."""

    path: str
    kind: FileKind
    size: int
    mode: int
    uid: int
    gid: int
    mtime: float
    target: str | None = None
    """Where a symlink points."""


class Entry(FileInfo, frozen=True, kw_only=True):
    """One file with where it leads, if it is a symlink, and the extended attributes that were asked for."""

    leads_to: str | None = None
    leads_to_kind: FileKind | None = None
    """The kind of a symlink's target; None if it is no symlink, or leads nowhere."""
    attributes: dict[str, str] = msgspec.field(default_factory=dict)


class Matches(Record, frozen=True, kw_only=True):
    """Paths that a glob found; `complete` is False if a bound cut them, and `note` says which."""

    paths: tuple[str, ...]
    complete: bool = True
    note: str = ""


class GrepHit(Record, frozen=True, kw_only=True):
    path: str
    line: int
    text: str


class GrepResult(Record, frozen=True, kw_only=True):
    """Lines that a grep found; a partial result says so in `complete` and `note`."""

    hits: tuple[GrepHit, ...]
    complete: bool = True
    note: str = ""
    files_searched: int = 0


class Edited(Record, frozen=True, kw_only=True):
    """What an edit did."""

    path: str
    replaced: int
    size: int
    digest: str
    """Pass it as `expect` to the next edit, which then fails if somebody else changed the file."""


class Change(Record, frozen=True, kw_only=True):
    """One event of a watch."""

    path: str
    kind: str
    """created | modified | deleted | moved_from | moved_to | overflow; a watch may tell `attributes` from modified"""
    directory: bool = False
