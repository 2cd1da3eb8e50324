"""The tool `python`, as a model calls it."""

import pytest

from hutch.policy.permissions import AgentPermissions, CommandRule, Decision
from tests.tools.real_tools import done, open_tools, refused

PLOT = "import matplotlib.pyplot as plt\n_ = plt.plot([1, 4, 9])\nprint('plotted')"


@pytest.mark.usefixtures("prepared")
async def test_a_model_gets_pictures_as_images_and_tables_as_text() -> None:
    """Variables stay between calls; a figure is an image that the model sees; an error is a traceback (P12)."""
    async with open_tools() as tools:
        silent = await done(tools, "python", code="import pandas as pd\nframe = pd.DataFrame({'a': [1, 2]})")
        assert silent.text.startswith("(no output)")
        table = await done(tools, "python", code="frame")
        assert "   a\n0  1\n1  2" in table.text and table.structured["value"] == "   a\n0  1\n1  2"
        plotted = await done(tools, "python", code=PLOT)
        assert plotted.text == "plotted\n[1 picture]" and plotted.structured["displays"]
        assert [(image.mime, image.data[:4]) for image in plotted.images] == [("image/png", b"\x89PNG")]
        failed = await done(tools, "python", code="frame.missing")
        assert "AttributeError" in failed.text
        assert failed.structured["raised"]["name"] == "AttributeError"
        slow = await done(tools, "python", code="while True: pass", timeout=1)
        assert "timeout after" in slow.text and slow.structured["verdict"]["cause"] == "timeout"
        assert (await done(tools, "python", code="len(frame)")).structured["value"] == "2"


async def test_rules_about_commands_hold_for_code() -> None:
    """A rule that denies a command cannot be passed by writing it in Python (P12)."""
    denied = AgentPermissions(commands=(CommandRule(decision=Decision.DENY, prefix="python3"),))
    async with open_tools(permissions=denied) as tools:
        await refused(tools, "python", "refused", code="import os; os.system('id')")
