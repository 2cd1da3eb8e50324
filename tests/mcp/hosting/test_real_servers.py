"""Real servers of the registries, installed and run in boxes, answering through the gateway."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hutch.keeper.embedded import Hutch
from hutch.mcp.hosting import Hosted
from hutch.model.mcp import McpServer, ServerState, Start
from hutch.model.spec import MountMode
from mcp import MCPError
from tests.mcp.hosting.hosted_servers import text_of
from tests.mcp.hosting.packages import EVERYTHING, FILESYSTEM, npm_cache, settings, wheels
from tests.proofs import write

SERVER = """
from mcp.server.mcpserver import MCPServer
from words import shout

server = MCPServer("project")

@server.tool()
def loud(text: str) -> str:
    return shout(text)

@server.tool()
def eat() -> str:
    hoard = []
    while True:
        hoard.append(bytearray(b"x" * (16 << 20)))

server.run("stdio")
"""

MARKS = "ls -d /workspace/.mcp/.cache/py-*/.installed; stat -c %Y /workspace/.mcp/.cache/py-*"


def venv_project(place: Path) -> Path:
    """A project as people have it: sources, requirements.txt, and a virtual environment of the host beside them."""
    place.mkdir()
    (place / "requirements.txt").write_text("mcp\n")
    (place / "words.py").write_text("def shout(text):\n    return text.upper()\n")
    (place / "server.py").write_text(SERVER)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place / ".venv")], check=True, timeout=60)
    return place


def repository_in(place: Path) -> Path:
    """A git repository with one commit."""
    git = ["git", "-C", str(place), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "init", "-q", str(place)], check=True, timeout=60)
    (place / "a.txt").write_text("a")
    subprocess.run([*git, "add", "."], check=True, timeout=60)
    subprocess.run([*git, "commit", "-qm", "the first"], check=True, timeout=60)
    return place


async def test_fetched_and_project(tmp_path: Path) -> None:
    """`uvx` fetches one server, another is a project whose requirements are installed, once; both answer through the
    gateway, and nothing an installer said is in the protocol's stream (B34, B35)."""
    found = await asyncio.to_thread(wheels, tmp_path / "wheels", "mcp-server-time", "uv")
    place = venv_project(tmp_path / "proj")
    async with Hutch(mount_roots=()) as hutch:
        async with Hosted(hutch, directory=tmp_path, settings=settings(found)) as hosted:
            await hosted.add("time", McpServer(command="uvx", args=("mcp-server-time",)))
            await hosted.add("project", McpServer(command=f"{place}/.venv/bin/python", args=(f"{place}/server.py",)))
            async with hosted.gateway() as client:
                names = {tool.name for tool in (await client.list_tools()).tools}
                assert {"time__get_current_time", "project__loud"} <= names
                answer = await client.call_tool("time__get_current_time", {"timezone": "UTC"})
                assert json.loads(text_of(answer))["timezone"] == "UTC"
                assert text_of(await client.call_tool("project__loud", {"text": "quiet"})) == "QUIET"
            box = await hutch.attach((await hosted.info("project")).box)
            marks = await box.exec(
                "ls -d /workspace/.mcp/.cache/py-*/.installed; stat -c %Y /workspace/.mcp/.cache/py-*"
            )
            # The second start finds what the first has installed.
            await hosted.restart("project")
            again = await hutch.attach((await hosted.info("project")).box)
            assert again.id != box.id
            assert text_of(await hosted.call("project", "loud", {"text": "same"})) == "SAME"
            same = await again.exec(
                "ls -d /workspace/.mcp/.cache/py-*/.installed; stat -c %Y /workspace/.mcp/.cache/py-*"
            )
            assert same.stdout == marks.stdout
            assert ".installed" in marks.stdout
            # The host's own files were only looked at.
            assert sorted(os.listdir(place)) == [".venv", "requirements.txt", "server.py", "words.py"]


async def test_npx(tmp_path: Path) -> None:
    """Npx installs a server in its box; resources and prompts pass the gateway too (B33)."""
    cache = await asyncio.to_thread(npm_cache, tmp_path / "npm", [EVERYTHING])
    async with Hutch(mount_roots=()) as hutch:
        async with Hosted(hutch, directory=tmp_path, settings=settings(None, cache)) as hosted:
            await hosted.add("everything", McpServer(command="npx", args=("-y", EVERYTHING)))
            async with hosted.gateway() as client:
                assert text_of(await client.call_tool("everything__echo", {"message": "hi"})) == "Echo: hi"
                assert "everything__simple-prompt" in [each.name for each in (await client.list_prompts()).prompts]
                first = (await client.list_resources()).resources[0]
                assert (await client.read_resource(first.uri)).contents
                assert (await client.get_prompt("everything__simple-prompt")).messages


@pytest.mark.proof
@pytest.mark.timeout(900)
async def test_all_of_them(tmp_path: Path) -> None:
    """Five real servers behind one gateway; kill -9 of one, an OOM in one, and a restart of Hutch each heal within the
    promised back-off (2 s for the first retry, and its start) while the others keep answering."""
    found = await asyncio.to_thread(wheels, tmp_path / "wheels", "mcp-server-time", "mcp-server-git", "uv", "pip")
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "hello.txt").write_text("hello from the host")
    cache = await asyncio.to_thread(npm_cache, tmp_path / "npm", [EVERYTHING], [FILESYSTEM, str(docs)])
    repository = repository_in(tmp_path / "repository")
    place = venv_project(tmp_path / "proj")
    table = {
        "everything": McpServer(command="npx", args=("-y", EVERYTHING), start=Start.EAGER),
        "files": McpServer(command="npx", args=("-y", FILESYSTEM, str(docs)), start=Start.EAGER),
        "time": McpServer(command="uvx", args=("mcp-server-time",), start=Start.EAGER),
        "git": McpServer(
            command="uvx", args=("mcp-server-git", "--repository", str(repository)), mount=MountMode.RW,
            env={"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"},
        ),
        "project": McpServer(
            command=f"{place}/.venv/bin/python", args=(f"{place}/server.py",), start=Start.EAGER, memory_mb=256,
            disk_mb=64,
        ),
    }  # fmt: skip
    options = settings(found, cache).but(servers=table)
    healed: dict[str, float] = {}
    async with Hutch(mount_roots=()) as hutch:
        async with Hosted(hutch, directory=tmp_path, settings=options) as hosted:
            begun = time.monotonic()
            async with hosted.gateway() as client:
                names = {tool.name.partition("__")[0] for tool in (await client.list_tools()).tools}
                assert names == set(table)
                cold = time.monotonic() - begun
                answer = await client.call_tool("files__read_text_file", {"path": "/mnt/docs/hello.txt"})
                assert text_of(answer) == "hello from the host"
                log = await client.call_tool("git__git_log", {"repo_path": "/mnt/repository"})
                assert "the first" in text_of(log)
                for name, number in (("everything", 9), ("time", 9)):
                    info = await hosted.info(name)
                    box = await hutch.attach(info.box)
                    since = time.monotonic()
                    await (await box.job(info.job)).signal(number)
                    for other, tool, given in (
                        ("project", "loud", {"text": "x"}), ("files", "list_allowed_directories", {}),
                    ):  # fmt: skip
                        await client.call_tool(f"{other}__{tool}", given)
                    while (await hosted.info(name)).starts < info.starts + 1:
                        await asyncio.sleep(0.05)
                    await hosted.ready(name)
                    healed[f"kill -9 of {name}"] = time.monotonic() - since
                    assert text_of(await client.call_tool("project__loud", {"text": "on"})) == "ON"
                answer = await client.call_tool("time__get_current_time", {"timezone": "UTC"})
                assert not answer.is_error
                with pytest.raises(MCPError, match="memory"):
                    await client.call_tool("project__eat", {})
                since = time.monotonic()
                assert text_of(await client.call_tool("everything__echo", {"message": "hi"})) == "Echo: hi"
                assert text_of(await client.call_tool("project__loud", {"text": "back"})) == "BACK"
                healed["out of memory in project"] = time.monotonic() - since
            since = time.monotonic()
        async with Hosted(hutch, directory=tmp_path, settings=options) as hosted:
            async with hosted.gateway() as client:
                assert len({tool.name.partition("__")[0] for tool in (await client.list_tools()).tools}) == len(table)
            healed["restart of all"] = time.monotonic() - since
            assert all(info.state is ServerState.READY for info in await hosted.all())
    write(
        "mcp-servers-in-boxes",
        servers=sorted(table), cold_start_sec=round(cold, 1),
        healed_sec={name: round(seconds, 1) for name, seconds in healed.items()},
    )  # fmt: skip


async def test_what_cannot_be_installed(tmp_path: Path) -> None:
    """A failed installation is reported in phase dep_install with the installer's output (B35, B36)."""
    place = tmp_path / "proj"
    place.mkdir()
    (place / "requirements.txt").write_text("surely-no-such-package-anywhere==1.0\n")
    (place / "server.py").write_text("print('never run')\n")
    options = settings(tmp_path / "wheels").but(retry_pauses_sec=())
    (tmp_path / "wheels").mkdir()
    async with Hutch(mount_roots=()) as hutch, Hosted(hutch, directory=tmp_path, settings=options) as hosted:
        await hosted.add("bad", McpServer(command="python", args=(f"{place}/server.py",)))
        async with hosted.gateway() as client:
            with pytest.raises(MCPError, match="surely-no-such-package-anywhere") as failed:
                await client.call_tool("bad__anything", {})
        assert failed.value.error.data["details"]["phase"] == "dep_install"
