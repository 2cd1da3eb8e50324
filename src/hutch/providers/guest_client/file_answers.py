"""The types of a guest's answers about files for which the model has none."""

from typing import Any

import msgspec


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
