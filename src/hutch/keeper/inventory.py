"""Which boxes there are, for whoever decides by it: those on record, and those being made that are on none yet."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from hutch.keeper.boxes.live import Live
from hutch.keeper.store.store import Store
from hutch.model.ids import BoxId
from hutch.model.spec import EffectiveSpec


class Counted(NamedTuple):
    """What is known of a box before it has a record."""

    owner: str
    spec: EffectiveSpec


class Census:
    """What the store was asked may be out of date when its answer is there; what this keeper has and makes never is.
    So the answers here hold until the next `await`, and whoever decides by one must act before that."""

    def __init__(self, store: Store, boxes: dict[BoxId, Live]) -> None:
        """`boxes` is the keeper's own dictionary."""
        self._store = store
        self._boxes = boxes
        self._coming: dict[BoxId, Counted] = {}

    @contextmanager
    def expecting(self, box_id: BoxId, owner: str, spec: EffectiveSpec) -> Iterator[None]:
        """Until its record is written, which counts from then on."""
        self._coming[box_id] = Counted(owner, spec)
        try:
            yield
        finally:
            del self._coming[box_id]

    async def all(self) -> dict[BoxId, Counted]:
        """Of every keeper on the store."""
        recorded = await self._store.all()
        ours = (live.record for live in self._boxes.values())
        return {record.id: Counted(record.owner, record.spec) for record in (*recorded, *ours)} | self._coming

    def size(self) -> int:
        """Of this keeper alone."""
        return len(self._boxes) + len(self._coming.keys() - self._boxes.keys())
