"""The snippets of docs/guides/tools.md do what the guide says."""

import ast
import textwrap
from pathlib import Path
from typing import Any

from hutch.config import Config
from hutch.keeper.embedded import Hutch
from hutch.tools.toolbox import TOOLS

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "tools.md").read_text()


def snippets(language: str) -> list[str]:
    return [block.split("```")[0] for block in GUIDE.split(f"```{language}\n")[1:]]


async def run(code: str, names: dict[str, Any]) -> None:
    """As the body of the guide's `async with` would be."""
    compiled = compile(textwrap.dedent(code), "guide", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(compiled, names)
    if result is not None:
        await result


async def test_each_snippet_works(capsys: Any) -> None:
    first, agents, permissions, attachments = snippets("python")
    imports, body = first.split("async with Hutch() as hutch:\n")
    async with Hutch() as hutch:
        names: dict[str, Any] = {"hutch": hutch}
        await run(imports, names)
        await run(body, names)
        assert "every exec is a new shell" in names["system"]
        assert names["result"].structured["stdout"] == "42\n"
        assert names["reply"]["content"][0]["tool_use_id"] == "t1"
        assert names["replies"][0]["role"] == "tool"
        await run(agents, names)
        assert names["missing"].code == "file_not_found"
        await run(permissions, names)
        assert "May agent coder use exec: rm -rf build?" in capsys.readouterr().out
        assert "the user said no" in names["refused"].text
        await run(attachments, names)
        assert "[('lines.txt', 23)] {}" in capsys.readouterr().out
        await names["tools"].close()
        for info in await hutch.boxes():
            await hutch.destroy(info.id, force=True)


def test_the_configuration_shown_is_valid(tmp_path: Path) -> None:
    (table,) = snippets("toml")
    (tmp_path / "hutch.toml").write_text(table)
    config = Config.load(tmp_path / "hutch.toml", environ={"HOME": str(tmp_path)}, cwd=tmp_path)
    assert config.permissions["coder"].paths[0].match == "/workspace/secrets/**"


def test_every_tool_is_in_the_table() -> None:
    for tool in TOOLS:
        assert f"`{tool.name}`" in GUIDE
