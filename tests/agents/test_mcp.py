"""The third scripted agent: the same ten tasks over MCP, at `/mcp` and at `hutch mcp`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hutch import Hutch
from hutch.tools import Tools
from tests.agents.dispatcher_agents import ToolsHost
from tests.agents.mcp_agent import McpTools
from tests.agents.tasks import TASKS
from tests.mcp.serving.clients import over_http, stdio
from tests.server.serving import Server, serving

ON_STDIO = ("repository", "attachment")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as started:
        yield started


def owner(task: str) -> str:
    return task.replace(" ", "-")


def host(hutch: Hutch, session: str) -> ToolsHost:
    """Return the application around the client. Calls without a message of their own belong to the message `now`."""
    return ToolsHost(Tools(hutch.for_session(session)), "now")


@pytest.mark.parametrize("task", TASKS)
async def test_an_agent_does_the_task_over_http(task: str, server: Server, tmp_path: Path) -> None:
    key = server.key("user", owner(task))
    async with Hutch(server.announcement["url"], key=key) as hutch:
        async with over_http(server, key, "?scope=desk")("auto") as client:
            await TASKS[task](McpTools(client), host(hutch, "mcp/desk"), tmp_path)


@pytest.mark.parametrize(
    "task", [task if task in ON_STDIO else pytest.param(task, marks=pytest.mark.proof) for task in TASKS]
)
async def test_an_agent_does_the_task_on_stdio(task: str, server: Server, tmp_path: Path) -> None:
    (server.top / "hutch.toml").write_text("")
    scope = f"desk-{owner(task)}"
    async with Hutch(f"unix:{server.run}/server.sock") as hutch:
        async with stdio(server.top, "--scope", scope)("legacy") as client:
            await TASKS[task](McpTools(client), host(hutch, f"mcp/{scope}"), tmp_path)
