"""Scripted agents that see only schemas and answers do ten tasks, one with OpenAI's schema and one with Anthropic's."""

from pathlib import Path

import pytest

from tests.agents.flavours import AnthropicDesk, OpenAIDesk, ToolsHost
from tests.agents.tasks import TASKS
from tests.tools.workshop import workshop


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("flavour", [OpenAIDesk, AnthropicDesk])
async def test_an_agent_does_the_task(
    flavour: type[OpenAIDesk] | type[AnthropicDesk], task: str, tmp_path: Path
) -> None:
    config = {"state_dir": str(tmp_path / "s")}
    async with workshop(config=config) as tools:
        await TASKS[task](flavour(tools), ToolsHost(tools), tmp_path)
