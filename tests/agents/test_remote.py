"""The same tools on a remote Hutch: they stand on the public protocols, so the same tasks are done there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hutch import Hutch
from hutch.tools import Tools
from tests.agents.dispatcher_agents import AnthropicTools, ToolsHost
from tests.agents.tasks import TASKS
from tests.server.serving import Server, serving

BRIEF = ("repository", "long log", "two boxes", "skill", "attachment")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as started:
        yield started


@pytest.mark.parametrize(
    "task", [task if task in BRIEF else pytest.param(task, marks=pytest.mark.proof) for task in TASKS]
)
async def test_an_agent_does_the_task_on_a_server(task: str, server: Server, tmp_path: Path) -> None:
    async with Hutch(f"unix:{server.run}/server.sock") as hutch:
        tools = Tools(hutch)
        await TASKS[task](AnthropicTools(tools), ToolsHost(tools), tmp_path)
        await tools.close()
