"""Tools of the Python dispatcher for agents, with tool calls in the form of OpenAI or of Anthropic."""

import base64
import json
from collections.abc import Mapping
from typing import Any

from hutch.tools import Tools, answer_anthropic, answer_openai
from tests.agents.agent_tools import AgentTools, Host, Reply, Spec

MESSAGE = "m-1"


class OpenAITools(AgentTools):
    """Arguments are JSON text; answers are text only, errors too."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def tools(self) -> list[Spec]:
        functions = [each["function"] for each in await self._tools.schemas("openai")]
        return [Spec(each["name"], each["description"], each["parameters"]) for each in functions]

    async def send(self, name: str, arguments: dict[str, Any]) -> Reply:
        call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
        (answer,) = await answer_openai(self._tools, said, message_id=MESSAGE)
        assert (answer["role"], answer["tool_call_id"]) == ("tool", "call_1")
        text = json.loads(json.dumps(answer))["content"]
        return Reply(text, text.startswith("Error ("))

    async def prompt(self) -> str:
        return await self._tools.guidance()


class AnthropicTools(AgentTools):
    """Arguments are an object; answers are blocks, with pictures and a mark for errors."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def tools(self) -> list[Spec]:
        found = await self._tools.schemas("anthropic")
        return [Spec(each["name"], each["description"], each["input_schema"]) for each in found]

    async def send(self, name: str, arguments: dict[str, Any]) -> Reply:
        use = {"type": "tool_use", "id": "toolu_1", "name": name, "input": json.loads(json.dumps(arguments))}
        said = {"role": "assistant", "content": [{"type": "text", "text": "I will."}, use]}
        answer = json.loads(json.dumps(await answer_anthropic(self._tools, said, message_id=MESSAGE)))
        (result,) = answer["content"]
        assert (answer["role"], result["type"], result["tool_use_id"]) == ("user", "tool_result", "toolu_1")
        text = "".join(block["text"] for block in result["content"] if block["type"] == "text")
        pictures = [block["source"]["data"] for block in result["content"] if block["type"] == "image"]
        return Reply(text, result["is_error"], tuple(base64.b64decode(each) for each in pictures))

    async def prompt(self) -> str:
        return await self._tools.guidance()


class ToolsHost(Host):
    """The application that made the tools, or one that works in the session of an MCP client."""

    def __init__(self, tools: Tools, message: str = MESSAGE) -> None:
        self._tools = tools
        self._message = message

    async def install_skill(self, directory: str) -> None:
        await self._tools.hutch.skills.install(directory)

    async def give(self, files: Mapping[str, bytes]) -> None:
        box, _ = await self._tools.agent().box()
        await self._tools.attachments.put(box, self._message, files)

    async def collect(self) -> dict[str, bytes]:
        box, _ = await self._tools.agent().box()
        collected = await self._tools.attachments.collect(box, self._message)
        assert collected.skipped == {}
        return {file.name: file.data for file in collected.files}
