"""The checks that every transport and era must pass: list, call, progress, cancel, elicitation."""

import asyncio
import base64
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from mcp.types import BlobResourceContents, ElicitRequestParams, ElicitResult, ResourceLink

from mcp import Client
from tests.mcp.serving.clients import Connect, eventually, pictures, run, text

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SLEEPERS = "cat /proc/[0-9]*/comm | grep -c '^sleep$' || true"


async def lists_and_calls(client: Client) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert {"exec", "job", "read", "write", "edit", "glob", "grep", "box_query"} <= set(tools)
    # The SDK's client holds every answer from here on against these, and raises where one does not fit.
    assert not any(tool.output_schema for tool in tools.values()), "structured content would repeat the text"
    assert "isolated Linux box" in (client.instructions or "")
    reading, running = tools["read"].annotations, tools["exec"].annotations
    assert reading is not None and running is not None
    assert reading.read_only_hint and not running.read_only_hint
    assert not running.destructive_hint and not running.open_world_hint, "a box without network that can be thrown away"
    assert (await run(client, "echo $((6 * 7))"))["stdout"] == "42\n"


async def shows_pictures(client: Client) -> None:
    wrote = {"path": "dot.png", "content_base64": base64.b64encode(PNG).decode()}
    assert not (await client.call_tool("write", wrote)).is_error
    (picture,) = pictures(await client.call_tool("read", {"path": "dot.png"}))
    assert (picture.mime_type, base64.b64decode(picture.data)) == ("image/png", PNG)


async def sends_files(client: Client) -> None:
    """What the model sends is a resource, which the client can fetch; nothing else of the box is."""
    sent = await client.call_tool("send_file", {"path": "dot.png", "name": "Bild 1.png"})
    (link,) = [each for each in sent.content if isinstance(each, ResourceLink)]
    assert (link.name, link.mime_type, link.size) == ("Bild 1.png", "image/png", len(PNG))
    assert [each.uri for each in (await client.list_resources()).resources] == [link.uri]
    (content,) = (await client.read_resource(link.uri)).contents
    assert isinstance(content, BlobResourceContents) and base64.b64decode(content.blob) == PNG
    with pytest.raises(MCPError):
        await client.read_resource(link.uri.replace("Bild%201.png", "../../../etc/passwd"))
    await run(client, ["rm", "-r", "outbox"])


async def tells_errors_as_data(client: Client) -> None:
    """Lesson: an error a model can repair is a result, not a failure of the protocol."""
    missing = await client.call_tool("read", {"path": "nowhere"})
    assert missing.is_error and missing.meta["hutch/facts"]["error"]["code"] == "file_not_found"
    wrong = await client.call_tool("exec", {"comand": "ls"})
    assert wrong.is_error and "comand" in text(wrong)
    unknown = await client.call_tool("nonsense", {})
    assert unknown.is_error and "no tool" in text(unknown)


async def tells_progress(client: Client) -> None:
    answer: list[tuple[float, float | None, str | None]] = []
    heard = asyncio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        answer.append((progress, total, message))
        heard.set()

    waiting = "while [ ! -e go ]; do sleep 0.05; done; rm -f go; echo went"
    call = asyncio.create_task(client.call_tool("exec", {"command": waiting}, progress_callback=hear))
    await asyncio.wait_for(heard.wait(), 60)
    await client.call_tool("write", {"path": "go", "content": ""})
    assert "went" in text(await call)
    assert answer[0][0] > 0 and "running" in (answer[0][2] or "")


async def cancels(client: Client) -> None:
    """Cancelling a call kills its command, children too."""
    call = asyncio.create_task(client.call_tool("exec", {"command": "touch begun; sleep 4242 & sleep 4242"}))

    async def begun() -> bool:
        return not (await client.call_tool("read", {"path": "begun"})).is_error

    async def gone() -> bool:
        return (await run(client, SLEEPERS))["stdout"].strip() == "0"

    await eventually(begun)
    assert not await gone()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await eventually(gone)
    await run(client, ["rm", "begun"])


class User:
    """A user who gives the prepared answer and remembers the questions."""

    def __init__(self) -> None:
        self.says: ElicitResult = ElicitResult(action="decline")
        self.questions: list[str] = []

    async def __call__(self, context: Any, params: ElicitRequestParams) -> ElicitResult:
        self.questions.append(params.message)
        return self.says


async def asks(client: Client, user: User) -> None:
    """B-permissions: `ask` is a question to the client's user; his answer decides."""
    await run(client, "touch kept")
    user.questions.clear()
    user.says = ElicitResult(action="decline")
    refused = await client.call_tool("exec", {"command": "rm kept"})
    assert refused.is_error and refused.meta["hutch/facts"]["error"]["code"] == "refused", text(refused)
    assert len(user.questions) == 1 and "rm kept" in user.questions[0] and "removes files" in user.questions[0]
    user.says = ElicitResult(action="accept", content={"decision": "deny"})
    assert (await client.call_tool("exec", {"command": "rm kept"})).is_error
    assert (await run(client, "ls"))["stdout"].split() == ["dot.png", "kept"]
    user.says = ElicitResult(action="accept", content={"decision": "always"})
    await run(client, "rm kept")
    assert "kept" not in (await run(client, "ls"))["stdout"]
    assert len(user.questions) == 3
    await run(client, "touch kept && true")
    await run(client, "rm kept")
    assert len(user.questions) == 3, "`always` holds for the same command"


async def tour(connect: Connect, era: str) -> None:
    user = User()
    async with connect(era, elicitation_callback=user) as client:
        assert (client.protocol_version == "2026-07-28") == (era != "legacy")
        user.says = ElicitResult(action="accept", content={"decision": "allow"})
        await lists_and_calls(client)
        await shows_pictures(client)
        await sends_files(client)
        await tells_errors_as_data(client)
        await tells_progress(client)
        await cancels(client)
        await asks(client, user)
    async with connect(era) as client:
        refused = await client.call_tool("exec", {"command": "rm dot.png"})
        assert refused.is_error and "nobody can be asked" in text(refused)
        assert (await run(client, "ls"))["stdout"].split() == ["dot.png"], "the box was found again"
