"""The MCP Inspector's command line, an implementation of the protocol that is not ours nor the SDK's."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mcp.serving.clients import HUTCH, environ, facts_of
from tests.server.serving import TIMEOUT_SECONDS, serving

PACKAGE = Path(__file__).parent / "inspector" / "package.json"
_INSTALLING = 480.0


@pytest.fixture(scope="session")
def inspector() -> str:
    """Installed once for this user, by the version that package.json names."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    (version,) = json.loads(PACKAGE.read_text())["dependencies"].values()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hutch-tests" / f"inspector-{version}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        pytest.skip(f"nowhere to install it: {error}")
    program = cache / "node_modules" / ".bin" / "mcp-inspector-cli"
    with (cache / "lock").open("w") as lock:  # pytest workers side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (cache / "done").exists():
            shutil.copy(PACKAGE, cache)
            words = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(cache)]
            done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=_INSTALLING)
            if done.returncode:
                pytest.skip(f"npm cannot install it: {done.stderr[-300:]!r}")
            (cache / "done").touch()
    return str(program)


def inspect(program: str, *words: str, env: dict[str, str]) -> dict[str, Any]:
    # It looks for its own package.json as `../package.json` of the working directory.
    done = subprocess.run(
        [program, "--cli", *words], env=env, cwd=Path(program).parents[1], capture_output=True,
        stdin=subprocess.DEVNULL, timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout, done.stderr)
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index(b"{") :])
    return found


CALL = ("--method", "tools/call", "--tool-name", "exec", "--tool-arg", "command=echo $((6*7))")


def test_on_stdio(inspector: str, top: Path) -> None:
    place = (sys.executable, *HUTCH)
    tools = inspect(inspector, *place, "--method", "tools/list", env=environ(top))["tools"]
    assert {"exec", "read"} <= {tool["name"] for tool in tools}
    answer = inspect(inspector, *place, *CALL, env=environ(top))
    assert facts_of(answer)["stdout"] == "42\n" and not answer.get("isError")


def test_over_http(inspector: str, top: Path) -> None:
    with serving() as server:
        url = f"{server.announcement['url']}/mcp"
        key = f"Authorization: Bearer {server.key('user', 'inspector')}"
        place = (url, "--transport", "http", "--header", key)
        tools = inspect(inspector, *place, "--method", "tools/list", env=dict(os.environ))["tools"]
        assert {"exec", "read"} <= {tool["name"] for tool in tools}
        answer = inspect(inspector, *place, *CALL, env=dict(os.environ))
        assert facts_of(answer)["stdout"] == "42\n" and not answer.get("isError")
