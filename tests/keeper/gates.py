"""Where a test holds one caller while another continues: so it decides who is first, and no clock does."""

import asyncio

from hutch.keeper.boxes.records import BoxRecord
from hutch.keeper.store.store import Known, MemoryStore
from hutch.model.boxes import Event


class Gate:
    """Close the gate: callers wait at it."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()


class Gates:
    """Gates by the name of a step."""

    def __init__(self) -> None:
        self._shut: dict[str, Gate] = {}

    def shut(self, step: str) -> Gate:
        gate = self._shut[step] = Gate()
        return gate

    def spare(self, step: str) -> None:
        """Callers pass from now on; those who wait keep waiting for their gate."""
        del self._shut[step]

    async def passed(self, step: str) -> None:
        if gate := self._shut.get(step):
            gate.reached.set()
            await gate.open.wait()


class GatedStore(MemoryStore):
    """A store whose answers can be held: it has done what it was asked, and nobody knows yet."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = Gates()

    async def insert(self, record: BoxRecord, event: Event) -> None:
        await self.gates.passed("before insert")
        await super().insert(record, event)
        await self.gates.passed("insert")

    async def replace(self, record: BoxRecord, expected: int, event: Event | None) -> bool:
        changed = await super().replace(record, expected, event)
        await self.gates.passed("replace")
        return changed

    async def all(self, known: Known | None = None) -> tuple[BoxRecord, ...]:
        records = await super().all(known)
        await self.gates.passed("all")
        return records

    async def by_name(self, owner: str, name: str) -> BoxRecord | None:
        named = await super().by_name(owner, name)
        await self.gates.passed("by_name")
        return named

    async def put_note(self, kind: str, key: str, body: bytes, *, new: bool = False) -> bool:
        written = await super().put_note(kind, key, body, new=new)
        await self.gates.passed("put_note")
        return written
