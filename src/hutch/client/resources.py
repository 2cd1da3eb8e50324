"""What a server keeps besides boxes, over HTTP: volumes, receipts, questions to people, and hosted MCP servers."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec

from hutch.client.boxes import checked_name
from hutch.client.transport.requests import NDJSON, Repeat, Server, convert_answer
from hutch.model.boxes import VolumeInfo
from hutch.model.mcp import McpServer, McpServerInfo, McpTool
from hutch.model.questions import Answer, AskRequest, QuestionInfo
from hutch.model.receipts import Chain, ChainCheck, Detail, Receipt


class RemoteVolumes:
    """The `Volumes` protocol: volumes of the key's owner."""

    def __init__(self, ask: Callable[..., Awaitable[Any]]) -> None:
        self._ask = ask

    async def create(self, name: str) -> VolumeInfo:
        made: VolumeInfo = await self._ask(
            VolumeInfo, "POST", "/v1/volumes", body={"name": name}, repeat=Repeat.UNSENT
        )  # fmt: skip
        return made

    async def all(self) -> tuple[VolumeInfo, ...]:
        found: tuple[VolumeInfo, ...] = await self._ask(
            tuple[VolumeInfo, ...], "GET", "/v1/volumes", part="volumes"
        )  # fmt: skip
        return found

    async def get(self, name: str) -> VolumeInfo:
        found: VolumeInfo = await self._ask(VolumeInfo, "GET", f"/v1/volumes/{checked_name(name, 'volume')}")
        return found

    async def remove(self, name: str) -> None:
        path = f"/v1/volumes/{checked_name(name, 'volume')}"
        await self._ask(type(None), "DELETE", path, repeat=Repeat.UNSENT)


class RemoteReceipts:
    """The `Receipts` protocol: receipts of the boxes that the key's owner has or had."""

    def __init__(self, server: Server, session: str) -> None:
        self._server = server
        self._headers = {"Hutch-Session": session}

    async def list(self, box_id: str, after: int = 0, limit: int = 1000) -> tuple[Receipt, ...]:
        page = await self._ask("GET", "/v1/receipts", box=checked_name(box_id, "box"), after=after, limit=limit)
        return convert_answer(page["receipts"], tuple[Receipt, ...])

    async def chains(self) -> tuple[Chain, ...]:
        return convert_answer((await self._ask("GET", "/v1/receipts"))["chains"], tuple[Chain, ...])

    async def verify(self, box_id: str = "") -> tuple[ChainCheck, ...]:
        found = await self._ask("POST", "/v1/receipts/verify", body={"box": box_id})
        return convert_answer(found["chains"], tuple[ChainCheck, ...])

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
        path = f"/v1/boxes/{checked_name(box_id, 'box')}/receipts" if box_id else "/v1/receipts"
        await self._server.ask(type(None), "POST", path, headers=self._headers, body=body, repeat=Repeat.UNSENT)

    async def _ask(self, method: str, path: str, /, **options: Any) -> dict[str, Any]:
        return await self._server.ask(dict[str, Any], method, path, headers=self._headers, **options)


class RemoteQuestions:
    """The `Questions` protocol: questions that wait for an answer from the key's owner."""

    def __init__(self, server: Server, session: str) -> None:
        self._server = server
        self._headers = {"Hutch-Session": session}

    async def waiting(self) -> tuple[QuestionInfo, ...]:
        found = await self._ask("GET", "/v1/questions")
        return msgspec.convert(found["questions"], tuple[QuestionInfo, ...])

    async def answer(self, question_id: str, answer: Answer | str) -> None:
        path = f"/v1/questions/{checked_name(question_id, 'question')}"
        body = {"answer": str(answer)}
        await self._server.ask(type(None), "POST", path, headers=self._headers, body=body, repeat=Repeat.UNSENT)

    async def ask(self, request: AskRequest) -> Answer:
        found = await self._ask("POST", "/v1/questions", body=request.to_plain(), repeat=Repeat.UNSENT)
        return Answer(found["answer"])

    async def _ask(self, method: str, path: str, /, **options: Any) -> dict[str, Any]:
        return await self._server.ask(dict[str, Any], method, path, headers=self._headers, **options)


class RemoteMcpServers:
    """Hosted MCP servers of the key's owner. MCP clients themselves use /mcp/gateway."""

    def __init__(self, ask: Callable[..., Awaitable[Any]]) -> None:
        self._ask = ask

    async def all(self) -> tuple[McpServerInfo, ...]:
        found: tuple[McpServerInfo, ...] = await self._ask(
            tuple[McpServerInfo, ...], "GET", "/v1/mcp-servers", part="servers"
        )
        return found

    async def info(self, name: str) -> McpServerInfo:
        return await self._of(name, "GET", "")

    async def add(self, name: str, server: McpServer, *, trusted: bool = True, replace: bool = False) -> McpServerInfo:
        """Register a server. `trusted` opens the host paths that it names to it, if this key may do that."""
        body = {"name": name, "definition": server.to_plain(), "replace": replace}
        if not trusted:
            body["open_paths"] = False
        info: McpServerInfo = await self._ask(
            McpServerInfo, "POST", "/v1/mcp-servers", body=body, repeat=Repeat.UNSENT
        )  # fmt: skip
        return info

    async def remove(self, name: str) -> None:
        await self._ask(type(None), "DELETE", _path(name), repeat=Repeat.UNSENT)

    async def start(self, name: str) -> McpServerInfo:
        return await self._of(name, "POST", "/start")

    async def stop(self, name: str) -> McpServerInfo:
        return await self._of(name, "POST", "/stop")

    async def restart(self, name: str) -> McpServerInfo:
        return await self._of(name, "POST", "/restart")

    async def logs(self, name: str) -> tuple[str, ...]:
        found: tuple[str, ...] = await self._ask(tuple[str, ...], "GET", _path(name, "/logs"), part="lines")
        return found

    async def tools(self, name: str) -> tuple[McpTool, ...]:
        found: tuple[McpTool, ...] = await self._ask(tuple[McpTool, ...], "GET", _path(name, "/tools"), part="tools")
        return found

    async def call(self, name: str, tool: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call a tool. It is not retried, because nobody knows what the tool does."""
        body = {"tool": tool, "arguments": dict(arguments or {})}
        result: dict[str, Any] = await self._ask(
            dict[str, Any], "POST", _path(name, "/call"), body=body, repeat=Repeat.UNSENT
        )
        return result

    async def _of(self, name: str, method: str, path: str) -> McpServerInfo:
        info: McpServerInfo = await self._ask(McpServerInfo, method, _path(name, path))
        return info


def _path(name: str, rest: str = "") -> str:
    return f"/v1/mcp-servers/{checked_name(name, 'MCP server')}{rest}"
