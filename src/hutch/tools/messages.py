"""Answers the tool calls of OpenAI and Anthropic messages in the format of the same interface."""

import base64
from collections.abc import Mapping
from typing import Any

from hutch.tools.result import Image, ToolResult
from hutch.tools.toolbox import Tools


async def answer_openai(
    tools: Tools, message: Mapping[str, Any], *, agent: str | None = None, message_id: str = ""
) -> list[dict[str, Any]]:
    """Return the `tool` messages that answer the `tool_calls` of an assistant message (chat completions)."""
    answers = []
    for each in message.get("tool_calls") or ():
        function = each.get("function") or {}
        result = await tools.call(
            function.get("name", ""), function.get("arguments"), agent=agent, message=message_id
        )  # fmt: skip
        answers.append({"role": "tool", "tool_call_id": each.get("id", ""), "content": _tool_text(result)})
    return answers


def _tool_text(result: ToolResult) -> str:
    """Return the text of a result. Tool messages of this interface cannot hold pictures."""
    if not result.images:
        return result.text
    return f"{result.text}\n[the picture itself cannot be shown here]"


async def answer_anthropic(
    tools: Tools, message: Mapping[str, Any], *, agent: str | None = None, message_id: str = ""
) -> dict[str, Any]:
    """Return the user message with a `tool_result` for each `tool_use` of an assistant message."""
    results = []
    content = message.get("content")
    for each in content if isinstance(content, list) else ():
        if each.get("type") != "tool_use":
            continue
        result = await tools.call(each.get("name", ""), each.get("input"), agent=agent, message=message_id)
        results.append(
            {
                "type": "tool_result",
                "tool_use_id": each.get("id", ""),
                "is_error": result.is_error,
                "content": [{"type": "text", "text": result.text}, *(_picture(image) for image in result.images)],
            }
        )
    return {"role": "user", "content": results}


def _picture(image: Image) -> dict[str, Any]:
    data = base64.b64encode(image.data).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": image.mime, "data": data}}
