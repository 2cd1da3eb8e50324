"""What docs/guides/skills.md shows works: its package is one, its commands run, its snippet does what it says."""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from hutch.cli.parsers import parser_of
from hutch.keeper.embedded import Hutch
from hutch.skills.manifest import parse

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "skills.md").read_text()
EXTRACT = "#!/usr/bin/python3\nimport sys\nprint('text of', *sys.argv[1:])\n"


def blocks(language: str) -> list[str]:
    return [block.split("```")[0] for block in GUIDE.split(f"```{language}\n")[1:]]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The guide's own, but for what only a package index has."""
    (text,) = blocks("markdown")
    assert parse(text.encode()).dependencies.python == ("pypdf>=4",)
    place = tmp_path / "pdf-tools"
    (place / "scripts").mkdir(parents=True)
    (place / "SKILL.md").write_text(re.sub(r"  dependencies: .*\n", "", text))
    (place / "scripts" / "extract.py").write_text(EXTRACT)
    (place / "scripts" / "extract.py").chmod(0o755)
    return place


def test_every_command_runs(package: Path) -> None:
    first, binding = blocks("sh")
    home = {**os.environ, "HUTCH_STATE_DIR": str(package.parent / "s"), "HUTCH_RUN_DIR": str(package.parent / "r")}
    said = ""
    for line in first.splitlines():
        words = shlex.split(line, comments=True)
        done = subprocess.run(
            [sys.executable, "-m", "hutch.cli.main", *words[1:]], env=home, cwd=package.parent, timeout=100,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said += done.stdout
    assert said.splitlines()[-1] == "pdf-tools"
    for line in binding.splitlines():
        words = shlex.split(line, comments=True)
        _, parser = parser_of(*words[1:3])
        parser.parse_args(words[3:])


def test_every_command_of_the_table_is_one() -> None:
    table = GUIDE.split("| command | what it does |")[1].split("\n\n")[0]
    named = {
        word.split()[0]
        for cell in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
        for word in re.findall(r"`([^`]+)`", cell)
    }
    assert len(named) > 10
    for name in named:
        parser_of("skill", name)


async def test_the_snippet_works(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.make_archive(str(package.parent / "pdf-tools"), "zip", package.parent, "pdf-tools")
    monkeypatch.chdir(package.parent)
    (code,) = blocks("python")
    body = textwrap.dedent(code.split("async with Hutch() as hutch:\n")[1])
    shown = body.replace("    await box.exec(", "    result = await box.exec(")
    async with Hutch(state_dir=str(package.parent / "state"), mount_roots=()) as hutch:
        names: dict[str, Any] = {"hutch": hutch}
        compiled = compile(shown, "guide", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        await eval(compiled, names)
        assert names["result"].stdout == "text of report.pdf\n"
