"""Clients of the official SDK for `hutch mcp` and `/mcp`, in both eras of the protocol, and the boxes they leave."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, ImageContent, Implementation, TextContent

from mcp import Client, StdioServerParameters
from tests.server.serving import TIMEOUT_SECONDS, Server

T = TypeVar("T")

HUTCH = ("-m", "hutch.cli.main", "mcp")
ERAS = ("legacy", "auto")
"""The handshake, and the newest that both sides know, which has none."""

RULES = """\
[[permissions."*".commands]]
prefix = "rm"
decision = "ask"
reason = "it removes files"
"""
"""Rules that ask before commands that begin with `rm`."""


class Connect(Protocol):
    """A way to the tools: `async with connect("legacy") as client`."""

    def __call__(self, era: str, **options: Any) -> Any: ...


def environ(top: Path, **more: str) -> dict[str, str]:
    """A state directory of its own, and rules that ask before `rm`."""
    rules = top / "hutch.toml"
    if not rules.exists():
        rules.write_text(RULES)
    return {
        **os.environ, "HUTCH_STATE_DIR": str(top / "s"), "HUTCH_RUN_DIR": str(top / "r"), "HUTCH_CONFIG": str(rules),
        "HUTCH_ORPHAN_GRACE_SEC": "60", **more,
    }  # fmt: skip


def stdio(top: Path, *words: str, **env: str) -> Connect:
    @asynccontextmanager
    async def connect(
        era: str, *, name: str = "tester", cwd: Path | None = None, **options: Any
    ) -> AsyncIterator[Client]:
        place = StdioServerParameters(
            command=sys.executable, args=[*HUTCH, *words], env=environ(top, **env), cwd=cwd or top
        )
        info = Implementation(name=name, version="1")
        async with Client(place, mode=era, client_info=info, **options) as client:  # type: ignore[arg-type]
            yield client

    return connect


def over_http(server: Server, key: str, query: str = "", **headers: str) -> Connect:
    @asynccontextmanager
    async def connect(era: str, *, name: str = "tester", **options: Any) -> AsyncIterator[Client]:
        async with AsyncExitStack() as stack:
            sent = {"Authorization": f"Bearer {key}", **headers}
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=sent, timeout=TIMEOUT_SECONDS))
            place = streamable_http_client(f"{server.announcement['url']}/mcp{query}", http_client=http)
            info = Implementation(name=name, version="1")
            yield await stack.enter_async_context(
                Client(place, mode=era, client_info=info, **options)  # type: ignore[arg-type]
            )

    return connect


def text(result: CallToolResult) -> str:
    return "".join(each.text for each in result.content if isinstance(each, TextContent))


def facts_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a result in its JSON form, and the output that its text shows."""
    assert "structuredContent" not in result or result["structuredContent"] is None, "the output would be sent twice"
    said = "".join(each["text"] for each in result["content"] if each["type"] == "text")
    output = said.partition("\n[exit code ")[0].partition("--- stderr ---")[0].removeprefix("(no output)").rstrip("\n")
    stdout = f"{output}\n" if output else ""
    return {**result["_meta"]["hutch/facts"], "stdout": stdout}


def pictures(result: CallToolResult) -> list[ImageContent]:
    return [each for each in result.content if isinstance(each, ImageContent)]


async def run(client: Client, command: str | Sequence[str], **more: Any) -> dict[str, Any]:
    """The facts and the output of a command that must have been run."""
    result = await client.call_tool("exec", {"command": command, **more})
    assert not result.is_error, text(result)
    return facts_of(result.model_dump(by_alias=True, mode="json"))


async def eventually(found: Callable[[], Awaitable[T]]) -> T:
    """Wait for the first true answer."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while not (answer := await found()):
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.02)
    return answer


def hutch(top: Path, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "hutch.cli.main", *words, "--json"], env=environ(top), capture_output=True,
        stdin=subprocess.DEVNULL, timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def boxes(top: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = hutch(top, "box", "list")["boxes"]
    return found


def end_boxes(top: Path) -> None:
    if (top / "s").exists():
        for box in boxes(top):
            hutch(top, "box", "destroy", "--force", box["id"])
