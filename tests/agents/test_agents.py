"""Scripted agents that see only schemas and answers do ten tasks, one with OpenAI's schema and one with Anthropic's."""

import ast
from pathlib import Path

import pytest

from tests.agents.dispatcher_agents import AnthropicTools, OpenAITools, ToolsHost
from tests.agents.tasks import TASKS
from tests.tools.real_tools import open_tools


def test_the_tasks_know_nothing_of_hutch() -> None:
    """What decides in a task is what a model sees; the tasks and their tools import nothing of Hutch."""
    for name in ("tasks.py", "agent_tools.py"):
        tree = ast.parse(Path(__file__).with_name(name).read_text())
        froms = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        plain = {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}
        assert not {module for module in froms | plain if module.split(".")[0] in ("hutch", "mcp")}
        assert {module for module in froms if module.startswith("tests")} <= {"tests.agents.agent_tools"}
    assert len(TASKS) == 10


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("agent_tools", [OpenAITools, AnthropicTools])
async def test_an_agent_does_the_task(
    agent_tools: type[OpenAITools] | type[AnthropicTools], task: str, tmp_path: Path
) -> None:
    config = {"state_dir": str(tmp_path / "s")}
    async with open_tools(config=config) as tools:
        await TASKS[task](agent_tools(tools), ToolsHost(tools), tmp_path)
