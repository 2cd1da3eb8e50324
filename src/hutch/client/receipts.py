"""`RemoteReceipts`: the `Receipts` protocol over HTTP."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from hutch.client.answers import answered_plain
from hutch.client.boxes import named
from hutch.client.requests import NDJSON, Repeat, Server
from hutch.model.receipts import Chain, ChainCheck, Detail, Receipt


class RemoteReceipts:
    """Of the boxes that the key's owner has, or had."""

    def __init__(self, server: Server, session: str) -> None:
        self._server = server
        self._headers = {"Hutch-Session": session}

    async def list(self, box_id: str, after: int = 0, limit: int = 1000) -> tuple[Receipt, ...]:
        page = await self._ask("GET", "/v1/receipts", box=named(box_id, "box"), after=after, limit=limit)
        return answered_plain(page["receipts"], tuple[Receipt, ...])

    async def chains(self) -> tuple[Chain, ...]:
        return answered_plain((await self._ask("GET", "/v1/receipts"))["chains"], tuple[Chain, ...])

    async def verify(self, box_id: str = "") -> tuple[ChainCheck, ...]:
        found = await self._ask("POST", "/v1/receipts/verify", body={"box": box_id})
        return answered_plain(found["chains"], tuple[ChainCheck, ...])

    async def export(self, box_id: str = "") -> AsyncIterator[bytes]:
        headers = self._headers | {"Accept": NDJSON}
        async with self._server.open("GET", "/v1/receipts", headers=headers, box=box_id or None) as response:
            async for piece in response.pieces():
                yield piece

    async def note(
        self, box_id: str, op: str, details: Mapping[str, Detail] | None = None, *, error: str = "",
        duration_ms: float = 0.0,
    ) -> None:  # fmt: skip
        body = {"op": op, "details": dict(details or {}), "error": error, "duration_ms": duration_ms}
        path = f"/v1/boxes/{named(box_id, 'box')}/receipts" if box_id else "/v1/receipts"
        await self._server.ask(type(None), "POST", path, headers=self._headers, body=body, repeat=Repeat.UNSENT)

    async def _ask(self, method: str, path: str, /, **options: Any) -> dict[str, Any]:
        return await self._server.ask(dict[str, Any], method, path, headers=self._headers, **options)
