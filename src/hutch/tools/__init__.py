"""The tools that a model calls, defined once: their schemas, their dispatcher, their permissions and their guidance.

    tools = Tools(hutch, permissions=..., ask=..., spec={"profile": "code"})
    await tools.schemas("openai" | "openai-responses" | "anthropic" | "mcp", agent="main")  -> list of dicts; empty
                                                                   while no box can be created (`status` says why)
    await tools.call(name, arguments, agent="main", message="m1", progress=report)          -> ToolResult
    await tools.guidance(agent="main")                             -> text for the system prompt
    await tools.status(agent="main")                               -> ToolsStatus: which tools there are, and why not
    await tools.close()                                            -> releases every lease
    await answer_openai(tools, assistant_message), answer_anthropic(...)   -> the messages that answer its tool calls

`arguments` is a mapping or the JSON text of one. `call` always returns a `ToolResult(text, structured, is_error,
images, notes)`: an error is data with a code and a hint. Only cancellation raises, and it kills the command.
`progress(seconds, total_or_None, message)` is awaited about once a second during long work. `ask(AskRequest)` returns
`allow`, `deny` or `always` where the permissions require a question. Each agent has a session of its own, with its own
boxes, leases, cursors and memory of files that it has read. The default agent uses the session of the given `Hutch`.

The tools use only `hutch.api`, so they work the same on an embedded and on a remote Hutch.
"""

from hutch.model.questions import Answer, AskRequest
from hutch.policy.permissions import AgentPermissions, Decision
from hutch.tools.attachments import Attachment, Collected
from hutch.tools.definition import Tool
from hutch.tools.messages import answer_anthropic, answer_openai
from hutch.tools.provider_tools import ProviderKit
from hutch.tools.result import Image, ToolResult
from hutch.tools.toolbox import Tools, ToolsStatus

__all__ = [
    "AgentPermissions",
    "Answer",
    "AskRequest",
    "Attachment",
    "Collected",
    "Decision",
    "Image",
    "ProviderKit",
    "Tool",
    "ToolResult",
    "Tools",
    "ToolsStatus",
    "answer_anthropic",
    "answer_openai",
]
