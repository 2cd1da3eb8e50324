"""`hutch mcp-server …`: without a server, for as long as the command runs, and as the client of one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mcp.hosting.hosted_servers import project
from tests.server.serving import serving


def hutch(place: Path, *words: str, code: int = 0, **environ: str) -> str:
    """Run `hutch` on the state directory `place`, and return what it prints."""
    own = {"HUTCH_STATE_DIR": str(place / "s"), "HUTCH_RUN_DIR": str(place / "r"), **environ}
    done = subprocess.run(
        [sys.executable, "-m", "hutch.cli.main", "mcp-server", *words], env={**os.environ, **own}, timeout=100,
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("served", [False, True])
def test_commands(tmp_path: Path, served: bool) -> None:
    """Register, look, call, import and remove; a value is taken from the environment, and shown nowhere."""
    place = project(tmp_path / "proj")
    table = tmp_path / "claude.json"
    table.write_text('{"mcpServers": {"imported": {"command": "true", "colour": "red"},}} // as Claude keeps it')
    secret = "sk-0123456789abcdef"

    def check(home: Path) -> None:
        assert "there is no MCP server" in hutch(home, "list")
        added = hutch(
            home, "add", "--env", "API_TOKEN", "plain", "--", "python3", str(place / "server.py"), API_TOKEN=secret
        )
        assert "API_TOKEN" in added
        assert secret not in added
        assert "already" in hutch(home, "add", "plain", "--", "true", code=125)
        assert "echo" in hutch(home, "tools", "plain")
        assert hutch(home, "call", "plain", "environment", '{"name": "API_TOKEN"}').strip() == secret
        started = json.loads(hutch(home, "start", "plain", "--json"))
        assert (started["state"], started["files"]) == ("ready", {str(place): "/mnt/project"})
        assert "colour is not used" in hutch(home, "import", str(table))
        assert {each["name"] for each in json.loads(hutch(home, "list", "--json"))["servers"]} == {"imported", "plain"}
        hutch(home, "stop", "plain")
        assert "stopped" in hutch(home, "show", "plain")
        hutch(home, "remove", "imported")
        assert "no MCP server imported" in hutch(home, "show", "imported", code=125)

    if not served:
        home = Path(os.environ["HUTCH_STATE_DIR"]).parent / f"cli-{tmp_path.name}"
        home.mkdir()
        check(home)
        return
    with serving() as server:
        check(server.top)
        assert secret not in server.log.read_text()
