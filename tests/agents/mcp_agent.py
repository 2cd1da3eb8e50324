"""Tools over MCP: the agent uses the official SDK's client and nothing of Hutch; its host uses the server's API."""

import base64
from collections.abc import Mapping
from typing import Any

from mcp.types import ImageContent, TextContent

from hutch import Hutch
from hutch.tools import Tools
from mcp import Client
from tests.agents.agent_tools import AgentTools, Host, Reply, Spec

MESSAGE = "now"
"""Without a message of its own, a call belongs to this one."""


class McpTools(AgentTools):
    def __init__(self, client: Client) -> None:
        self._client = client

    async def tools(self) -> list[Spec]:
        found = (await self._client.list_tools()).tools
        return [Spec(tool.name, tool.description or "", tool.input_schema) for tool in found]

    async def send(self, name: str, arguments: dict[str, Any]) -> Reply:
        result = await self._client.call_tool(name, arguments)
        text = "".join(each.text for each in result.content if isinstance(each, TextContent))
        pictures = [base64.b64decode(each.data) for each in result.content if isinstance(each, ImageContent)]
        return Reply(text, result.is_error, tuple(pictures))

    async def prompt(self) -> str:
        """Said at the start; what came later, a client learns from list_skills."""
        skills = await self._client.call_tool("list_skills", {})
        listed = "".join(each.text for each in skills.content if isinstance(each, TextContent))
        return f"{self._client.instructions}\n{listed}"


class McpHost(Host):
    """The application around the client, in the client's session."""

    def __init__(self, hutch: Hutch, session: str) -> None:
        self._hutch = hutch
        self._tools = Tools(hutch.for_session(session))

    async def install_skill(self, directory: str) -> None:
        await self._hutch.skills.install(directory)

    async def give(self, files: Mapping[str, bytes]) -> None:
        box, _ = await self._tools.agent().box()
        await self._tools.attachments.put(box, MESSAGE, files)

    async def collect(self) -> dict[str, bytes]:
        box, _ = await self._tools.agent().box()
        collected = await self._tools.attachments.collect(box, MESSAGE)
        assert collected.skipped == {}
        return {file.name: file.data for file in collected.files}
