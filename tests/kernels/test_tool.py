"""The tool `python` for models, and `hutch box python` for people."""

import base64
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from hutch import Hutch
from hutch.tools import Tools

PLOT = "import matplotlib.pyplot as plt\n_ = plt.plot([1, 4, 9])\nprint('plotted')"


@pytest.mark.usefixtures("prepared")
async def test_a_model_gets_pictures_as_images_and_tables_as_text() -> None:
    """Variables stay between calls; a figure is an image that the model sees; an error is a traceback (P12)."""
    async with Hutch() as hutch, Tools(hutch) as tools:
        assert (await tools.call("python", {"code": "import pandas as pd\nframe = pd.DataFrame({'a': [1, 2]})"})).text
        table = await tools.call("python", {"code": "frame"})
        assert "   a\n0  1\n1  2" in table.text and table.structured["value"] == "   a\n0  1\n1  2"
        plotted = await tools.call("python", {"code": PLOT})
        assert plotted.text == "plotted\n[1 picture]" and plotted.structured["displays"]
        assert [(image.mime, image.data[:4]) for image in plotted.images] == [("image/png", b"\x89PNG")]
        failed = await tools.call("python", {"code": "frame.missing"})
        assert not failed.is_error and "AttributeError" in failed.text
        assert failed.structured["raised"]["name"] == "AttributeError"
        slow = await tools.call("python", {"code": "while True: pass", "timeout": 1})
        assert "timeout after" in slow.text and slow.structured["verdict"]["cause"] == "timeout"
        assert (await tools.call("python", {"code": "len(frame)"})).structured["value"] == "2"


async def test_rules_about_commands_hold_for_code() -> None:
    """A rule that denies a command cannot be passed by writing it in Python (P12)."""
    from hutch.policy.permissions import Decision, Permissions

    denied = Permissions(commands={"python3 -c *": Decision.DENY})
    async with Hutch() as hutch, Tools(hutch, permissions=denied) as tools:
        refused = await tools.call("python", {"code": "import os; os.system('id')"})
        assert refused.is_error and refused.code == "refused", refused


def _hutch(*arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "hutch", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, env=os.environ, timeout=120)


def test_code_from_the_command_line() -> None:
    """An option, standard input and JSON; variables stay from call to call, and errors are exit codes."""
    made: dict[str, Any] = json.loads(_hutch("box", "create", "--json", "--memory", "512").stdout)
    box = str(made["id"])
    try:
        first = _hutch("box", "python", box, "-c", "x = 20\nprint('set')")
        assert (first.returncode, first.stdout) == (0, "set\n"), first
        assert _hutch("box", "python", box, stdin="x + 1\n").stdout == "21\n"
        failed = _hutch("box", "python", box, "-c", "1 / 0")
        assert failed.returncode == 1 and "ZeroDivisionError" in failed.stderr
        shown = json.loads(_hutch("box", "python", "--json", box, "-c", "x").stdout)
        assert shown["displays"][0]["data"]["text/plain"] == "20" and shown["verdict"]["cause"] == "ok"
        assert _hutch("box", "python", "--language", "bash", box, "-c", "echo $((6 * 7))").stdout == "42\n"
        picture = "class P:\n  def _repr_png_(self): return " + repr(base64.b64decode("iVBORw0KGgo=")) + "\nP()"
        assert "[image/png: " in _hutch("box", "python", box, "-c", picture).stdout
    finally:
        _hutch("box", "destroy", box)
