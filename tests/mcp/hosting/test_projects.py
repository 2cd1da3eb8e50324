"""Projects of this machine, each kind with its own installer: a package, a Node project, one that uv runs.

Their dependencies come from a directory of packages that this machine's own pip and npm have filled.
"""

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from hutch.keeper.embedded import Hutch
from hutch.mcp.hosting import Hosted
from hutch.model.mcp import McpServer
from tests.mcp.hosting.hosted_servers import SOURCE, text_of, where
from tests.mcp.hosting.packages import settings, wheels

NODE = """
const ms = require("ms");
const lines = require("readline").createInterface({ input: process.stdin });
lines.on("line", (line) => {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) return;
  const results = {
    initialize: () => ({ protocolVersion: params.protocolVersion, capabilities: { tools: {} },
                         serverInfo: { name: "node", version: "1" } }),
    "tools/list": () => ({ tools: [{ name: "ms", inputSchema: { type: "object" } }] }),
    "tools/call": () => ({ content: [{ type: "text", text: String(ms(params.arguments.text)) }] }),
    ping: () => ({}),
  };
  console.log(JSON.stringify({ jsonrpc: "2.0", id, result: results[method]() }));
});
"""


def package(place: Path) -> Path:
    """A Python package in the src layout, with a script, and a virtual environment that has it installed."""
    (place / "src" / "plainly").mkdir(parents=True)
    (place / "src" / "plainly" / "__init__.py").write_text("")
    text = SOURCE.read_text().replace("\n\nmain()\n", "\n")
    (place / "src" / "plainly" / "serving.py").write_text(text)
    (place / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "plainly"\nversion = "1.0"\nrequires-python = ">=3.11"\n'
        '[project.scripts]\nplainly = "plainly.serving:main"\n'
    )
    (place / ".venv" / "bin").mkdir(parents=True)
    (place / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    return place


def node_project(place: Path, cache: Path) -> Path:
    place.mkdir()
    (place / "package.json").write_text(json.dumps({"name": "p", "version": "1.0.0", "dependencies": {"ms": "^2.1.3"}}))
    (place / "index.js").write_text(NODE)
    npm = ["npm", "--cache", str(cache), "--no-audit", "--no-fund"]
    subprocess.run([*npm, "install", "--package-lock-only"], check=True, cwd=place, capture_output=True, timeout=120)
    # Once for real, somewhere else: then the cache has what the box will ask for.
    other = shutil.copytree(place, place.parent / "elsewhere")
    subprocess.run([*npm, "ci", "--omit=dev"], check=True, cwd=other, capture_output=True, timeout=120)
    return place


async def test_python_and_node(tmp_path: Path) -> None:
    """Sources that are only shown read-only are copied before anything is built beside them; what is installed is found
    again by the state of the project, and is installed again when that changes (B34, B35)."""
    found = await asyncio.to_thread(wheels, tmp_path / "wheels", "setuptools", "wheel")
    cache = tmp_path / "npm"
    node = await asyncio.to_thread(node_project, tmp_path / "node", cache)
    place = package(tmp_path / "package")
    async with Hutch(mount_roots=()) as hutch:
        async with Hosted(hutch, directory=tmp_path, settings=settings(found, cache)) as hosted:
            await hosted.add("script", McpServer(command=f"{place}/.venv/bin/plainly"))
            await hosted.add("node", McpServer(command="node", args=(f"{node}/index.js",)))
            await asyncio.gather(hosted.start("script"), hosted.start("node"))
            script = where(await hosted.call("script", "where"))
            assert script["argv"][0].startswith("/workspace/.mcp/.cache/py-")
            assert script["argv"][0].endswith("/bin/plainly")
            assert text_of(await hosted.call("node", "ms", {"text": "2 days"})) == "172800000"
            assert not (node / "node_modules").exists()
            assert sorted(each.name for each in place.iterdir()) == [".venv", "pyproject.toml", "src"]
            # A change of the sources is a change of what is installed.
            serving = place / "src" / "plainly" / "serving.py"
            serving.write_text(serving.read_text().replace('return text(given["text"])', 'return text("changed")'))
            await hosted.restart("script")
            assert text_of(await hosted.call("script", "echo", {"text": "x"})) == "changed"


@pytest.mark.proof
async def test_uv_runs_a_project(tmp_path: Path) -> None:
    """`uv run` makes its environment in a copy, never beside the sources; a module is found as well (B34, B35)."""
    found = await asyncio.to_thread(wheels, tmp_path / "wheels", "setuptools", "wheel", "uv")
    place = package(tmp_path / "package")
    module = ("-c", "import plainly.serving as serving; serving.main()")
    async with Hutch(mount_roots=()) as hutch:
        async with Hosted(hutch, directory=tmp_path, settings=settings(found)) as hosted:
            await hosted.add("module", McpServer(command=f"{place}/.venv/bin/python", args=module))
            await hosted.add("uv", McpServer(command="uv", args=("run", "--directory", str(place), "plainly")))
            assert text_of(await hosted.call("module", "echo", {"text": "as a module"})) == "as a module"
            assert text_of(await hosted.call("uv", "echo", {"text": "run by uv"})) == "run by uv"
            assert sorted(each.name for each in place.iterdir()) == [".venv", "pyproject.toml", "src"]
