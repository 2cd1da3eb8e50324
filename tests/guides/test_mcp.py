"""What docs/guides/mcp.md shows can be pasted: its JSON is JSON, its options are options, its rules are rules."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import msgspec

from hutch.cli.parsers import parser_of
from hutch.config import Config
from hutch.config.mcp import McpTable
from hutch.policy.permissions import AgentPermissions, check

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "mcp.md").read_text()


def blocks(language: str) -> list[str]:
    return [block.split("```")[0] for block in GUIDE.split(f"```{language}\n")[1:]]


def test_every_client_starts_hutch_mcp() -> None:
    rows = [line for line in GUIDE.splitlines() if line.startswith("| ") and "hutch" in line]
    assert len(rows) == 8
    for row in rows:
        (what,) = re.findall(r"`([^`]*)` \|$", row)
        if what.startswith("{"):
            (servers,) = json.loads(what).values()
            assert (servers["hutch"]["command"], servers["hutch"]["args"]) == ("hutch", ["mcp"])
        else:
            assert shlex.split(what)[-2:] == ["hutch", "mcp"]


def test_every_option_is_one() -> None:
    found = [block for block in blocks("sh") if block.startswith("hutch mcp")]
    assert len(found) == 2
    _, parser = parser_of("mcp")
    for line in "".join(found).splitlines():
        words = shlex.split(line, comments=True)
        assert words[:2] == ["hutch", "mcp"]
        parser.parse_args(words[2:])


def test_the_rules_are_rules() -> None:
    (text,) = [block for block in blocks("toml") if "[permissions" in block]
    for name, table in tomllib.loads(text)["permissions"].items():
        check(name, msgspec.convert(table, AgentPermissions))


def test_servers_in_boxes_are_configured_as_shown(tmp_path: Path) -> None:
    tables = [block for block in blocks("toml") if "[mcp" in block]
    assert len(tables) == 2
    for text in tables:
        (tmp_path / "hutch.toml").write_text(text)
        assert Config.load(tmp_path / "hutch.toml").mcp != McpTable()
    (lines,) = [block for block in blocks("console") if "mcp-server" in block]
    for line in lines.splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if words[1] == "mcp-server":
            _, parser = parser_of("mcp-server", words[2])
            parser.parse_args(words[3:])
