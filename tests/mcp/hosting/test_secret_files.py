"""Secrets by file: where the server reads them, and nowhere else."""

import json
from pathlib import Path
from typing import Any

import pytest

from hutch import logs
from hutch.config.mcp import McpTable
from hutch.errors import Invalid, ServerFailed
from hutch.keeper.embedded import Hutch
from hutch.mcp.hosting import Hosted
from hutch.model.mcp import McpServer, Share
from hutch.policy.mcp_servers import check
from tests.mcp.hosting.hosted_servers import QUICK, plain, text_of
from tests.mcp.hosting.test_cli import hutch as command

KEY = "-----BEGIN KEY-----\nc2VjcmV0LWxpbmUtb25l\nc2VjcmV0LWxpbmUtdHdv\n-----END KEY-----\n"
LINE = "c2VjcmV0LWxpbmUtb25l"
PATH = "/run/secrets/key"


async def test_the_server_reads_a_secret_file_that_is_shown_nowhere(tmp_path: Path) -> None:
    """A secret file has mode 0400, belongs to the box's user and lies outside of the workspace. Its value stands in no
    command line, environment, log, error, status or receipt, and not in the volume that stays (lesson 37)."""
    lines: list[str] = []
    try:
        async with Hutch(mount_roots=(), log_level="debug") as hutch:
            logs.configure(level="debug", write=lines.append)
            async with Hosted(hutch, directory=tmp_path / "registry", settings=QUICK) as hosted:
                server = plain(tmp_path / "proj", secret_files={"key": KEY}, env={"KEY_FILE": PATH})
                added = await hosted.add("plain", server)
                found = json.loads(text_of(await hosted.call("plain", "file", {"path": PATH})))
                assert found == {"mode": "0o400", "mine": True, "text": KEY}
                info = await hosted.info("plain")
                assert (added.secret_files, info.secret_files) == (("key",), ("key",))
                box = await hutch.observe(info.box)
                jobs = await box.jobs()
                async with hutch.box() as other:
                    seen = await other.exec(f"cat {PATH}; ls -la /run")
                    assert LINE not in seen.stdout + seen.stderr
                holder = await hutch.attach(info.box)
                looking = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'"
                processes = await holder.exec(looking)
                assert "KEY_FILE" in processes.stdout, "the server's own environment was among them"
                kept = await holder.exec("ls -ld /run/secrets; grep -rlF -- 'c2VjcmV0' /workspace /tmp /mnt /dev/shm")
                assert kept.stdout.startswith("drwx------") and len(kept.stdout.splitlines()) == 1
                with pytest.raises(ServerFailed, match="exited with 9") as spilled:
                    await hosted.call("plain", "spill", {"path": PATH})
                answer: list[Any] = [
                    added, info, jobs, processes.stdout, spilled.value, spilled.value.to_wire(),
                    await hosted.logs("plain"), await hosted.all(), await hutch.receipts.list(info.box),
                    hosted.registry.get("plain").server.secret_files.keys(), lines,
                ]  # fmt: skip
                assert "the key is" in str(answer), "it did say so, and was not repeated"
                for each in answer:
                    assert LINE not in str(each)
    finally:
        logs.configure()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"secret_files": {"../x": "v"}}, "no name"),
        ({"secret_files": {"a/b": "v"}}, "no name"),
        ({"secret_files": {"": "v"}}, "no name"),
        ({"secret_files": {"a": ""}}, "empty"),
        ({"secret_files": {"a": "x" * 70_000}}, "past 65536 bytes"),
        ({"secret_files": {"a": "v"}, "share": Share.SCOPE}, "shares a box"),
        ({"secret_files": {"a": "v"}, "share": Share.PIPELINE}, "shares a box"),
    ],
)
def test_definitions_that_cannot_be(options: dict[str, Any], why: str) -> None:
    with pytest.raises(Invalid, match=why):
        check("plain", McpServer(command="true", **options))
    with pytest.raises(Invalid, match="somewhere else"):
        check("far", McpServer(url="http://localhost/mcp", secret_files={"a": "v"}))


def test_configurations_and_commands_keep_them(tmp_path: Path) -> None:
    """`hutch config show`, the command that registers and the table of servers have names only."""
    table = McpTable(servers={"hub": McpServer(command="true", secret_files={"key": KEY})})
    assert LINE not in str(table.shown()) and "'key': '***'" in str(table.shown())
    (tmp_path / "key").write_text(KEY)
    words = ("add", "--secret-file", f"key={tmp_path}/key", "hub", "--", "true", "--key-file", PATH)
    added = command(tmp_path, *words)
    assert "secret files: key" in added and LINE not in added
    assert LINE not in command(tmp_path, "list", "--json") + command(tmp_path, "show", "hub")
    (registry,) = (tmp_path / "s").rglob("servers.json")
    assert (registry.stat().st_mode & 0o777, LINE in registry.read_text()) == (0o600, True)
    assert "cannot be read" in command(tmp_path, "add", "--secret-file", "key=/nope", "x", "--", "true", code=125)
