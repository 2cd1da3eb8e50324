"""Which session a client works in: by its scope, so that a restarted one finds its box and a second live one another.

A scope is a client's name and the directory it works in, or a name that somebody chose. Whoever comes while it is taken
gets the scope's next place: a session, and so a box, of its own.
"""

import fcntl
import hashlib
import os
from pathlib import Path
from typing import NamedTuple, Protocol

from hutch.config import directories
from hutch.errors import QuotaExceeded

MOST_PLACES = 64
"""Live clients of one scope."""


class Place(NamedTuple):
    """A place in a scope, taken until it is left."""

    session: str
    number: int
    """1: the scope's own box. Above: others were there first."""


class Places(Protocol):
    """Who sits where."""

    def take(self, scope: str) -> Place: ...

    def leave(self, place: Place) -> None: ...


def scope_of(client: str, directory: str) -> str:
    """For a person to recognise, and never the same for two directories."""
    digest = hashlib.sha256(directory.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return f"{client}@{_word(os.path.basename(directory.rstrip('/')))}-{digest}"


def named(scope: str) -> str:
    """A scope somebody chose, as part of a session's name."""
    word = _word(scope)
    return word if word == scope else f"{word}-{hashlib.sha256(scope.encode('utf-8', 'replace')).hexdigest()[:12]}"


def session_of(scope: str, number: int) -> str:
    return f"mcp/{scope}" if number == 1 else f"mcp/{scope}#{number}"


def _word(text: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-@") else "-" for c in text)[:48]


class PlacesOfProcess:
    """For a server, whose clients all come to one process."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, scope: str) -> Place:
        for number in range(1, MOST_PLACES + 1):
            session = session_of(scope, number)
            if session not in self._taken:
                self._taken.add(session)
                return Place(session, number)
        raise _full(scope)

    def leave(self, place: Place) -> None:
        self._taken.discard(place.session)


class PlacesOfMachine:
    """For processes that know nothing of each other: a lock on a file, which the kernel drops with its process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._locks: dict[str, int] = {}

    def take(self, scope: str) -> Place:
        directories.make(self._directory)
        for number in range(1, MOST_PLACES + 1):
            session = session_of(scope, number)
            name = hashlib.sha256(session.encode()).hexdigest()[:24]
            lock = os.open(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            self._locks[session] = lock
            return Place(session, number)
        raise _full(scope)

    def leave(self, place: Place) -> None:
        if (lock := self._locks.pop(place.session, None)) is not None:
            os.close(lock)


def _full(scope: str) -> QuotaExceeded:
    return QuotaExceeded(
        f"{MOST_PLACES} clients of the scope {scope} are there already", op="mcp", remedy="choose another scope"
    )
