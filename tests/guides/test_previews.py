"""The snippets of docs/guides/previews.md do what the guide says, at a server."""

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.server.serving import TIMEOUT_SECONDS, Server, serving, until

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "previews.md").read_text()


def test_the_commands_lead_to_a_page() -> None:
    """What is typed gives an address that shows the program's page."""
    block = GUIDE.split("```console\n")[1].split("```")[0]
    commands = [line.removeprefix("$ ") for line in block.splitlines()]
    with serving() as server:
        answers = [_typed(server, command) for command in commands]
        until(lambda: "8000  0.0.0.0  python3" in _typed(server, "hutch box ports web"))
        url = answers[-1].strip()
        request = urllib.request.Request(url.replace(url.split("/")[2], f"127.0.0.1:{url.split(':')[2].split('/')[0]}"))
        request.add_header("Host", url.split("/")[2])
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as page:
            assert b"Directory listing" in page.read()
        _typed(server, "hutch box destroy web")


def _typed(server: Server, command: str) -> str:
    home = {"HUTCH_STATE_DIR": str(server.state), "HUTCH_RUN_DIR": str(server.run)}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", command], env={**os.environ, **home, "PATH": path}, capture_output=True, text=True,
        timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def test_the_program_works(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = [block.split("```")[0] for block in GUIDE.split("```python\n")[1:]]
    with serving() as server:
        names = {"url": server.announcement["url"], "key": server.key("user", "guide")}
        exec(compile(program, "previews.md", "exec"), names)
    assert capsys.readouterr().out.splitlines() == ["8000 python3", "200", "HTTP/1.0 200 OK"]
