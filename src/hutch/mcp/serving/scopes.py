"""Chooses the Hutch session of an MCP client by its scope, so that a restarted client finds its box again.

A scope is the client's name with its working directory, or a name that the user chose. A client that comes while the
scope is in use gets the next slot: a session, and so a box, of its own.
"""

import fcntl
import hashlib
import os
from pathlib import Path
from typing import NamedTuple, Protocol

from hutch.config import directories
from hutch.errors import QuotaExceeded

MAX_SLOTS = 64
"""Most live clients of one scope."""


class Slot(NamedTuple):
    """A slot of a scope, held until it is released."""

    session: str
    number: int
    """Slot 1 has the scope's own box. Higher numbers mean that other clients came first."""


class Slots(Protocol):
    """Assigns slots to clients."""

    def acquire(self, scope: str) -> Slot: ...

    def release(self, slot: Slot) -> None: ...


def scope_of(client: str, directory: str) -> str:
    """Return a readable scope that differs for different directories."""
    digest = hashlib.sha256(directory.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return f"{client}@{_safe_word(os.path.basename(directory.rstrip('/')))}-{digest}"


def scope_name(scope: str) -> str:
    """Return a scope that the user chose in characters that a session name allows."""
    word = _safe_word(scope)
    return word if word == scope else f"{word}-{hashlib.sha256(scope.encode('utf-8', 'replace')).hexdigest()[:12]}"


def session_name(scope: str, number: int) -> str:
    return f"mcp/{scope}" if number == 1 else f"mcp/{scope}#{number}"


def _safe_word(text: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-@") else "-" for c in text)[:48]


class ProcessSlots:
    """Slots for a server, whose clients all connect to one process."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def acquire(self, scope: str) -> Slot:
        for number in range(1, MAX_SLOTS + 1):
            session = session_name(scope, number)
            if session not in self._taken:
                self._taken.add(session)
                return Slot(session, number)
        raise _no_slot_error(scope)

    def release(self, slot: Slot) -> None:
        self._taken.discard(slot.session)


class MachineSlots:
    """Slots for unrelated processes: locks on files, which the kernel releases when a process ends."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._locks: dict[str, int] = {}

    def acquire(self, scope: str) -> Slot:
        directories.make(self._directory)
        for number in range(1, MAX_SLOTS + 1):
            session = session_name(scope, number)
            name = hashlib.sha256(session.encode()).hexdigest()[:24]
            lock = os.open(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            self._locks[session] = lock
            return Slot(session, number)
        raise _no_slot_error(scope)

    def release(self, slot: Slot) -> None:
        if (lock := self._locks.pop(slot.session, None)) is not None:
            os.close(lock)


def _no_slot_error(scope: str) -> QuotaExceeded:
    return QuotaExceeded(
        f"{MAX_SLOTS} clients of the scope {scope} are there already", op="mcp", remedy="choose another scope"
    )
