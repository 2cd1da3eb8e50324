"""`--json` of the commands that keep running: what a program that starts them can read."""

import json
import os
from pathlib import Path

import pytest

from hutch.client.remote import RemoteHutch
from tests.cli.cli_process import TIMEOUT, hutch, read_until, started

pytestmark = pytest.mark.slow


def settings(top: Path) -> dict[str, str]:
    """A server's directories: a fresh start has no key yet."""
    return {"HUTCH_STATE_DIR": str(top / "s"), "HUTCH_RUN_DIR": str(top / "r"), "HUTCH_LOG_LEVEL": "error"}


async def test_a_server_reports_when_and_where_it_serves(hutch_directories: Path) -> None:
    """One line, when requests are taken, that says all that the lines for people do (B30)."""
    env = settings(hutch_directories / "on")
    for first in (True, False):
        with started("serve", "--json", "--port", "0", env=env) as process:
            assert process.stdout
            reply = json.loads(read_until(process.stdout.fileno(), b"\n"))
            assert (reply["pid"], reply["socket"]) == (process.pid, f"{env['HUTCH_RUN_DIR']}/server.sock")
            assert (reply["enabled"], reply["usable"], reply["provider"]) == (True, True, "native"), reply
            assert (reply["isolation"], reply["receipts"], reply["taken_over"]) == ("namespaces", "on", 0)
            key = Path(env["HUTCH_STATE_DIR"], "first-key")
            assert reply["first_key"] == (str(key) if first else "")
            async with RemoteHutch(reply["url"], key=key.read_text().strip()) as client:
                async with client.box(memory_mb=64) as box:
                    assert (await box.exec("echo here")).stdout == "here\n"
            process.terminate()
            rest, _ = process.communicate(timeout=TIMEOUT)
            assert (process.returncode, rest) == (0, b"")


def test_a_key_made_before_the_first_start_does_not_cost_the_admin_s(hutch_directories: Path) -> None:
    """The first start made no admin's key where any key was, and nobody said so."""
    env = settings(hutch_directories / "early")
    words = ("--owner", "alice", "--profiles", "default,code", "--actions", "create", "--no-pull")
    words += ("--max", "memory_mb=256")
    early = hutch("key", "create", *words, env=env)
    assert early.returncode == 0, early
    assert b"no admin's key yet" in early.stderr
    with started("serve", "--json", "--port", "0", env=env) as process:
        assert process.stdout
        reply = json.loads(read_until(process.stdout.fileno(), b"\n"))
        assert reply["first_key"] == str(Path(env["HUTCH_STATE_DIR"], "first-key"))
        process.terminate()
        process.communicate(timeout=TIMEOUT)
    listed = json.loads(hutch("key", "list", "--json", env=env).stdout)["keys"]
    assert sorted(key["role"] for key in listed) == ["admin", "user"]
    assert b"no admin's key" not in hutch("key", "create", env=env).stderr
    alice = next(key for key in listed if key["owner"] == "alice")
    assert alice["rights"]["profiles"] == ["default", "code"]
    shown = hutch("key", "show", alice["id"], env=env).stdout.decode()
    for words_shown in ("default, code", "create", "memory_mb=256", "only where the profile has it", "that are here"):
        assert words_shown in shown, shown
    assert "profiles default,code" in hutch("key", "list", env=env).stdout.decode()
    for wrong in (
        ("--profiles", "none-such"),
        ("--actions", "fly"),
        ("--max", "wings=2"),
        ("--role", "admin", "--no-root"),
    ):
        assert hutch("key", "create", *wrong, env=env).returncode == 125, wrong


def test_a_server_that_cannot_make_boxes_says_so_in_json(hutch_directories: Path) -> None:
    env = settings(hutch_directories / "off") | {"HUTCH_ENABLED": "false"}
    with started("serve", "--json", "--host", "", env=env) as process:
        assert process.stdout
        reply = json.loads(read_until(process.stdout.fileno(), b"\n"))
        assert (reply["enabled"], reply["url"]) == (False, "")


def test_mcp_says_what_json_is_about_and_keeps_its_output_clean(tmp_path: Path) -> None:
    """Standard output is the protocol's as soon as it serves; an error before that is JSON."""
    assert "MCP's alone" in " ".join(hutch("mcp", "--help").stdout.decode().split())
    failed = hutch("mcp", "--json", "--permissions", "nobodys", cwd=tmp_path)
    assert (failed.returncode, failed.stderr) == (125, b"")
    assert "nobodys" in json.loads(failed.stdout)["error"]["message"]
    hello = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }  # fmt: skip
    with started("mcp", "--json", cwd=tmp_path) as process:
        assert process.stdin and process.stdout
        os.write(process.stdin.fileno(), json.dumps(hello).encode() + b"\n")
        answer = json.loads(read_until(process.stdout.fileno(), b"\n"))
        assert (answer["jsonrpc"], answer["id"]) == ("2.0", 1)
        rest, _ = process.communicate(timeout=TIMEOUT)
        assert rest == b""
