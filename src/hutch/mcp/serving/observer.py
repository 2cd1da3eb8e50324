"""A `Hutch` for whoever may only look: the box it works in is one there is, looked at without its lease (P8)."""

from typing import Any

from hutch.api import Box, Hutch
from hutch.errors import NotFound


class ObservingHutch:
    """Everything else is the other Hutch's, which refuses what this caller may not do."""

    def __init__(self, hutch: Hutch, box: str = "") -> None:
        self._hutch = hutch
        self._box = box
        """The one to look at; empty: the default one, or the only one."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hutch, name)

    def for_session(self, name: str) -> "ObservingHutch":
        return ObservingHutch(self._hutch.for_session(name), self._box)

    async def working(self, /, **spec: Any) -> Box:
        if self._box:
            return await self._hutch.observe((await self._hutch.find(self._box)).id)
        if chosen := await self._hutch.default():
            return await self._hutch.observe(chosen)
        there = await self._hutch.boxes()
        if len(there) == 1:
            return await self._hutch.observe(there[0].id)
        raise NotFound(
            f"there are {len(there)} boxes, and none was chosen to look at", op="mcp",
            remedy="name one in the address of this MCP server: /mcp?box=NAME",
        )  # fmt: skip
