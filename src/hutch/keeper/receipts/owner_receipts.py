"""`Hutch.receipts`, embedded: those of this machine's user, in the name of one session."""

from collections.abc import AsyncIterator, Mapping

from hutch.keeper.boxes.records import LOCAL_OWNER
from hutch.keeper.receipts.receipts import Receipts
from hutch.model.receipts import Chain, ChainCheck, Detail, Receipt


class OwnReceipts:
    """The `Receipts` protocol of `hutch.api`."""

    def __init__(self, receipts: Receipts, session: str) -> None:
        self._receipts = receipts
        self._session = session

    async def list(self, box_id: str, after: int = 0, limit: int = 1000) -> tuple[Receipt, ...]:
        return await self._receipts.list(box_id, after, limit, owner=LOCAL_OWNER)

    async def chains(self) -> tuple[Chain, ...]:
        return await self._receipts.chains(owner=LOCAL_OWNER)

    async def verify(self, box_id: str = "") -> tuple[ChainCheck, ...]:
        return await self._receipts.verify(box_id, owner=LOCAL_OWNER)

    def export(self, box_id: str = "") -> AsyncIterator[bytes]:
        return self._receipts.export(box_id, owner=LOCAL_OWNER)

    async def note(
        self, box_id: str, op: str, details: Mapping[str, Detail] | None = None, *, error: str = "",
        duration_ms: float = 0.0,
    ) -> None:  # fmt: skip
        await self._receipts.note(
            box_id, op, dict(details or {}), owner=LOCAL_OWNER, session=self._session, error=error,
            duration_ms=duration_ms,
        )  # fmt: skip
