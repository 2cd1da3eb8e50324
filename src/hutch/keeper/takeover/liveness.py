"""Who lives: what a keeper asks about other keepers, and the answer by locks for those on one machine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from hutch.keeper.takeover import keeper_locks


class Claimant(Protocol):
    """Whoever claims to live: a keeper."""

    id: str

    async def confirm(self) -> None:
        """Others may have taken us for dead: look which boxes are still ours."""

    async def adopt(self) -> None:
        """Somebody else may have died: take over what it left."""


class Liveness(Protocol):
    """`claim` before anything else, `release` at the end."""

    @property
    def place(self) -> str:
        """Where boxes of this keeper's machine live. Only keepers of one place can reach them; "": all share one."""

    async def claim(self, claimant: Claimant) -> None: ...

    async def alive(self, keeper: str) -> bool:
        """A name never seen is dead."""

    def lapsed(self) -> bool:
        """Whether others may take this keeper for dead by now, though it lives."""

    async def sweep(self) -> None:
        """Remove the traces of the dead."""

    async def release(self) -> None: ...


class Locks:
    """The kernel knows, at once and always: a lock goes with its process. For stores on this machine."""

    place = ""

    def __init__(self, homes: Sequence[Path]) -> None:
        self._homes = homes
        self._claims: list[keeper_locks.Claim] = []

    async def claim(self, claimant: Claimant) -> None:
        self._claims = [keeper_locks.Claim(home, claimant.id) for home in self._homes]

    async def alive(self, keeper: str) -> bool:
        return keeper_locks.alive_in_any(self._homes, keeper)

    def lapsed(self) -> bool:
        return False

    async def sweep(self) -> None:
        for home in self._homes:
            keeper_locks.sweep(home)

    async def release(self) -> None:
        claims, self._claims = self._claims, []
        for claim in claims:
            claim.release()
