"""What a model calls, defined once: tools on boxes, their schemas, their dispatcher and the guidance for them.

    tools = Tools(hutch, permissions=..., ask=..., spec={"profile": "code"})
    await tools.schemas("openai" | "openai-responses" | "anthropic" | "mcp", agent="main")  -> list of dicts; empty
                                                                   while no box can be made (`status` says why)
    await tools.call(name, arguments, agent="main", message="m1", progress=report)          -> ToolResult
    await tools.guidance(agent="main")                             -> text for the system prompt
    await tools.status(agent="main")                               -> ToolsStatus: which tools there are, and why not
    await tools.close()                                            -> lets go of every lease
    await answer_openai(tools, assistant_message), answer_anthropic(...)   -> the messages that answer its tool calls

`arguments` is a mapping or the JSON text of one. `call` always returns a `ToolResult(text, structured, is_error,
images, notes)`: what went wrong is data with a code and a hint; only cancelling it raises, and that kills the command.
`progress(seconds, total_or_None, message)` is awaited now and then during long work. `ask(AskRequest)` answers
`allow`, `deny` or `always` where the permissions say so. Each agent is a session of its own: its boxes, leases, cursors
and what it has read are its own. The default agent is the session of the `Hutch` that was given.

Everything here stands on `hutch.api`, so it is the same on an embedded and on a remote Hutch.
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
