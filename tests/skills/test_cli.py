"""`hutch skill …` from a shell."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Home
from tests.skills.make_skill import skill

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(hutch_directories: Path) -> Iterator[Home]:
    place = Home(hutch_directories / "sks", hutch_directories / "skr")
    yield place
    assert place.hutch("box", "destroy", "--all", "--force").returncode == 0


def test_a_skills_life(home: Home, tmp_path: Path) -> None:
    """Install, show, write, versions, pin, rollback, export and remove work; an older box sees every change."""
    place = skill(tmp_path, run="#!/bin/sh\necho one\n")
    box = home.good("box", "create").strip()
    assert "2 files" in home.good("skill", "preview", str(place))
    home.good("skill", "install", str(place))
    assert home.good("box", "exec", box, "/workspace/.skills/demo/run") == "one\n"
    first = home.json("skill", "show", "demo")
    assert [file["path"] for file in first["content"]] == ["SKILL.md", "run"]
    home.good("skill", "write", "demo", "run", stdin=b"#!/bin/sh\necho two\n")
    assert home.good("box", "exec", box, "/workspace/.skills/demo/run") == "two\n"
    assert [each["active"] for each in home.json("skill", "versions", "demo")["versions"]] == [True, False]
    home.good("skill", "pin", "demo")
    code, answer = home.answer("skill", "upgrade", "demo")
    assert (code, answer["error"]["code"]) == (125, "invalid")
    code, answer = home.answer("skill", "install", str(place))
    assert (code, answer["error"]["code"]) == (125, "conflict")
    home.good("skill", "unpin", "demo")
    home.good("skill", "rollback", "demo", first["digest"])
    target = tmp_path / "out.zip"
    home.good("skill", "export", "demo", str(target))
    home.good("skill", "remove", "demo")
    assert home.json("skill", "list")["skills"] == []
    assert home.json("skill", "install", str(target))["digest"] == first["digest"]
    assert home.good("box", "exec", box, "/workspace/.skills/demo/run") == "one\n"
    command = (
        "mkdir -p .skills-state/demo; cp -r .skills/demo .skills-state/demo/edit; echo x >> .skills-state/demo/edit/a"
    )
    home.good("box", "exec", box, "--", "sh", "-c", command, "sh", ".skills-state/demo")
    assert home.json("skill", "save", "demo", "--box", box)["versions"] == 2
    assert home.good("skill", "show", "demo", "--file", "a") == "x\n"


def test_create_bind_scan(home: Home, tmp_path: Path) -> None:
    home.good("skill", "create", "mine", "--description", "It is: mine", "--stdin", stdin=b"# Do it\n")
    assert home.good("skill", "show", "mine", "--file", "SKILL.md").endswith("---\n\n# Do it\n")
    home.good("skill", "bind", "pipe", "mine")
    assert home.good("run", "--skills", "pipe", "--", "ls", "/workspace/.skills") == "mine\n"
    assert home.json("skill", "bind")["bindings"] == [{"group": "pipe", "skills": ["mine"]}]
    skill(tmp_path, "found")
    assert [each["name"] for each in home.json("skill", "scan", str(tmp_path))["skills"]] == ["found"]
    events = [json.loads(line) for line in home.good("events", "--json").splitlines()]
    assert "installed mine from edit" in json.dumps(events)
    for words in (("show", "none"), ("install", "/no/such"), ("create", "Not-A-Name", "--description", "x")):
        code, answer = home.answer("skill", *words)
        assert code == 125 and answer["error"]["remedy"], answer
