"""Definitions of servers: tables of other clients, and what command and arguments say about a project."""

import sys
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest

from hutch.config import Config
from hutch.errors import ConfigError, FileMissing, Invalid
from hutch.mcp.hosting import client_files, projects
from hutch.model.mcp import McpServer, Transport
from hutch.model.spec import MountMode


def test_claude_and_cursor() -> None:
    """The usual table; names that cannot be kept are changed, and that is said."""
    found = client_files.from_text(
        '{"mcpServers": {"my files": {"command": "npx", "args": ["-y", "x"], "env": {"A": 1}, "alwaysAllow": []},'
        ' "far": {"type": "streamable-http", "url": "https://example.org/mcp", "headers": {"X-Key": "k"}},'
        ' "old": {"type": "sse", "url": "https://example.org/sse"}, "off": {"command": "x", "enabled": false},'
        ' "odd": {"command": "x", "colour": "red"}, "none": {}}}'
    )
    assert found.servers["my-files"].args == ("-y", "x")
    assert found.servers["my-files"].env == {"A": "1"}
    assert found.servers["far"].transport is Transport.HTTP
    assert found.servers["old"].transport is Transport.SSE
    assert found.servers["off"].disabled
    assert "none" not in found.servers
    notes = "\n".join(found.notes)
    for said in ("my files: is called my-files here", "odd: colour is not used here", "none: MCP server none has no"):
        assert said in notes


def test_vs_code(tmp_path: Path) -> None:
    """`servers` in `.vscode/mcp.json`, with comments, trailing commas, variables and an environment file."""
    place = tmp_path / ".vscode" / "mcp.json"
    place.parent.mkdir()
    (tmp_path / ".env").write_text('# mine\nexport TOKEN="t0ken"\n')
    place.write_text(
        """{
        // "not": "a string that ends here,
        "inputs": [/* none, */],
        "servers": {
          "here": {"type": "stdio", "command": "node", "args": ["${workspaceFolder}/a//b.js", "${env:WHO:-you}"],
                   "envFile": ".env", "timeout": 30000,},
          "asks": {"command": "x", "args": ["${input:key}"]},
          "unset": {"command": "x", "args": ["${env:SURELY_NOT_SET}"]},
        },
        }"""
    )
    found = client_files.from_file(place, environ={"HOME": "/home/me"})
    assert found.servers["here"].args == (f"{tmp_path}/a//b.js", "you")
    assert found.servers["here"].env == {"TOKEN": "t0ken"}
    assert found.servers["here"].startup_timeout_sec == 30
    assert set(found.servers) == {"here"}
    assert "asks: asks for an input" in "\n".join(found.notes)


def test_nothing_of_this_machine_for_strangers() -> None:
    """What came over the wire is filled from nothing: neither variables nor files of the server's machine."""
    found = client_files.from_plain(
        {"a": {"command": "x", "args": ["${env:HOME}"]}, "b": {"command": "x", "envFile": "/etc/passwd"}}, environ={}
    )
    assert found.servers == {}
    assert len(found.notes) == 2


@pytest.mark.parametrize("text", ["[]", "{", '{"a": 1}', "nonsense"])
def test_no_table(text: str) -> None:
    with pytest.raises(Invalid):
        client_files.from_text(text)


def test_hutch_toml(tmp_path: Path) -> None:
    """`[mcp.servers.NAME]` is checked, errors name its position in the file, and secrets are not shown."""
    path = tmp_path / "hutch.toml"
    path.write_text('[mcp.servers.time]\ncommand = "uvx"\nargs = ["mcp-server-time"]\nenv = { KEY = "hide-me" }\n')
    config = Config.load(path)
    assert config.mcp.servers["time"].command == "uvx"
    shown = repr(config.show())
    assert "uvx" in shown
    assert "hide-me" not in shown
    path.write_text('[mcp.servers.time]\ncommand = "uvx"\nurl = "http://x"\n')
    with pytest.raises(ConfigError, match="both a command and a url"):
        Config.load(path)
    path.write_text('[mcp.servers.time]\ncomand = "uvx"\n')
    with pytest.raises(ConfigError, match="comand"):
        Config.load(path)


def venv(place: Path) -> Path:
    """As `python -m venv` makes it, in short."""
    (place / "bin").mkdir(parents=True)
    (place / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (place / "bin" / "python").symlink_to(sys.executable)
    return place


def test_virtual_environment(tmp_path: Path) -> None:
    """`.venv/bin/python` belongs to the project around it, whatever it is a link to (B34)."""
    (tmp_path / "proj" / "src").mkdir(parents=True)
    (tmp_path / "proj" / "requirements.txt").write_text("")
    place = venv(tmp_path / "proj" / ".venv")
    found = projects.infer(McpServer(command=str(place / "bin" / "python"), args=("-m", "server")))
    assert (found.root, found.venv, found.python) == (str(tmp_path / "proj"), str(place), True)
    relative = projects.infer(McpServer(command=".venv/bin/python", cwd=str(tmp_path / "proj")))
    assert relative.root == str(tmp_path / "proj")
    script = projects.infer(McpServer(command=str(place / "bin" / "my-server")))
    assert (script.program, script.python, script.root) == ("my-server", False, str(tmp_path / "proj"))


def test_windows() -> None:
    """Scripts on Windows (B34)."""
    command = r"C:\Users\me\proj\.venv\Scripts\python.exe"
    found = projects.venv_of(PureWindowsPath(command), looks=False)
    assert found == PureWindowsPath(r"C:\Users\me\proj\.venv")
    inferred = projects.infer(McpServer(command=command, args=("server.py",)))
    assert (inferred.program, inferred.python) == ("python", True)
    assert projects.venv_of(PurePosixPath("/usr/bin/python3")) is None


def test_project_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest directory with a marker; never the home, nor what is everybody's (B34)."""
    home = tmp_path / "home"
    deep = home / "code" / "proj" / "src" / "pkg"
    deep.mkdir(parents=True)
    (deep / "main.py").write_text("")
    monkeypatch.setenv("HOME", str(home))
    (home / ".git").mkdir()
    assert projects.infer(McpServer(command="python", args=(str(deep / "main.py"),))).root == str(deep)
    (home / "code" / "proj" / "package.json").write_text("{}")
    assert projects.infer(McpServer(command="python", args=(str(deep / "main.py"),))).root == f"{home}/code/proj"
    assert projects.root_of("/usr/bin") == ""
    assert projects.root_of("/tmp") == ""


def test_data(tmp_path: Path) -> None:
    """Path arguments of a downloaded program are data. They get distinct names, and nested paths become one (B34)."""
    for name in ("a/docs", "b/docs", "a/docs/deep"):
        (tmp_path / name).mkdir(parents=True)
    given = (f"{tmp_path}/a/docs", f"{tmp_path}/b/docs", f"{tmp_path}/a/docs/deep", "/etc", "/tmp", "/no/such", "-y")
    found = projects.infer(McpServer(command="npx", args=given))
    assert found.root == ""
    assert [(each.source, each.name) for each in found.data] == [
        (f"{tmp_path}/a/docs", "docs"), (f"{tmp_path}/b/docs", "2-docs")
    ]  # fmt: skip
    assert projects.infer(McpServer(command="npx", args=given, mount=MountMode.NONE)).sources() == ()
    with pytest.raises(FileMissing):
        projects.infer(McpServer(command="x", host_path="/no/such/place"))


def test_paths_in_the_box() -> None:
    """Whole arguments are mapped, never text inside others (lesson 23)."""
    paths = projects.path_map({"/home/me/p": "/mnt/project", "/home/me/p2": "/mnt/p2"})
    for given, expected in {
        "/home/me/p/x.py": "/mnt/project/x.py", "/home/me/p2": "/mnt/p2", "--f=/home/me/p/y": "--f=/mnt/project/y",
        "/home/me/p3": "/home/me/p3", "see /home/me/p": "see /home/me/p", "file:///home/me/p": "file:///home/me/p",
    }.items():  # fmt: skip
        assert paths.argument(given) == expected
