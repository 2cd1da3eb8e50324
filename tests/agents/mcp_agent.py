"""Tools over MCP: the agent uses the official SDK's client and nothing of Hutch."""

import base64
from typing import Any

from mcp.types import ImageContent, TextContent

from mcp import Client
from tests.agents.agent_tools import AgentTools, Reply, Spec


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
