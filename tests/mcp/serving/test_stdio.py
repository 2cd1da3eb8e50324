"""`hutch mcp`: whose box it is, what of the machine it shows, and how it bears a bad client and its own end."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from mcp import Client
from tests.mcp.serving.clients import HUTCH, boxes, environ, facts_of, hutch, run, stdio, text
from tests.mcp.serving.raw_client import Raw
from tests.server.serving import TIMEOUT_SECONDS, serving


def test_nonsense_is_survived(top: Path) -> None:
    """Lines that are no JSON, no message, or not even text do not end it, and do not get into the protocol."""
    with Raw(top) as raw:
        raw.say(b"this is no JSON")
        raw.say(b"\xff\xfe\x00\x80")
        assert raw.handshake()["serverInfo"]["name"] == "hutch"
        for line in (b"", b"[]", b"null", b'{"jsonrpc": "1.0"}', b'{"id": {}}', b"{" * 5000, b'"' + b"x" * 100_000):
            raw.say(line)
        unknown = raw.ask("no/such")
        assert unknown["error"]["code"] == -32601
        assert "error" in raw.ask("tools/call", name=7)
        assert raw.run("echo alive")["stdout"] == "alive\n"
        assert raw.close() == 0


def test_a_restarted_client_finds_its_box(top: Path) -> None:
    """The scope is client and directory: the same finds its box after an orderly end and after a crash."""
    other = top / "other"
    other.mkdir()
    with Raw(top) as raw:
        raw.handshake()
        mine = raw.run("echo 1 > file")["box"]
        raw.ask("tools/call", name="job", arguments={"action": "start", "command": "sleep 600", "name": "build"})
        assert raw.close() == 0
    with Raw(top) as raw:
        raw.handshake()
        again = raw.run("cat file /proc/[0-9]*/comm | grep '^1$\\|^sleep$'")
        assert (again["box"], again["stdout"]) == (mine, "1\nsleep\n"), "files and jobs"
        raw.process.send_signal(signal.SIGKILL)
        raw.process.wait(TIMEOUT_SECONDS)
    with Raw(top) as raw:
        raw.handshake()
        assert raw.run("cat file")["box"] == mine
        assert raw.close() == 0
    with Raw(top, cwd=other) as raw:
        raw.handshake()
        assert raw.run("true")["box"] != mine, "another directory"
    with Raw(top) as raw:
        raw.handshake("another client")
        assert raw.run("true")["box"] != mine


def test_a_named_scope_is_one_box_for_all(top: Path) -> None:
    other = top / "other"
    other.mkdir()
    with Raw(top, "--scope", "Büro 7") as raw:
        raw.handshake()
        mine = raw.run("true")["box"]
        assert raw.close() == 0
    with Raw(top, "--scope", "Büro 7", cwd=other) as raw:
        raw.handshake("another client")
        assert raw.run("true")["box"] == mine


def test_a_second_live_client_gets_a_box_of_its_own_and_says_so(top: Path) -> None:
    with Raw(top) as first, Raw(top) as second:
        assert "other live client" not in first.handshake()["instructions"]
        mine = first.run("true")["box"]
        assert "other live client" in second.handshake()["instructions"]
        answer = second.run("true")
        assert answer["box"] != mine
        assert any("box of its own" in note for note in answer["notes"])
        assert "notes" not in second.run("true"), "it is said once"
        assert first.run("true")["box"] == mine


def test_it_ends_and_leaves_its_box(top: Path) -> None:
    """A client that is in a hurry sends SIGTERM; nothing is lost by it."""
    with Raw(top) as raw:
        raw.handshake()
        mine = raw.run("true")["box"]
        raw.process.send_signal(signal.SIGTERM)
        raw.process.wait(TIMEOUT_SECONDS)
    (box,) = boxes(top)
    assert (box["id"], box["state"]) == (mine, "running")


def test_closing_its_input_ends_a_running_command(top: Path) -> None:
    with Raw(top) as raw:
        raw.handshake()
        raw.run("true")
        raw.say(
            b'{"jsonrpc": "2.0", "id": 99, "method": "tools/call", "params": {"name": "exec", '
            b'"arguments": {"command": "sleep 4242"}}}'
        )
        assert raw.close() == 0
    with Raw(top) as raw:
        raw.handshake()
        assert raw.run("cat /proc/[0-9]*/comm | grep -c '^sleep$' || true")["stdout"] == "0\n"


async def test_the_directory_is_shown_only_if_asked(top: Path) -> None:
    """The client's directory is shown in the box only with --workspace. `:ro` is enforced, a directory that may not be
    mounted is refused, and the instructions mention the mount (lesson 50)."""
    project = top / "project"
    project.mkdir()
    project.chmod(0o777)
    (project / "secret.txt").write_text("here")
    async with stdio(top)("auto", cwd=project) as client:
        assert (await run(client, f"ls; cat {project}/secret.txt"))["stdout"] == ""
    async with stdio(top, "--workspace", ".", "--scope", "rw")("auto", cwd=project) as client:
        tools = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
        assert tools["exec"] is not None and tools["exec"].destructive_hint, "it can change the client's own files"
        reply = client.instructions or ""
        assert f"/workspace is {project} of the machine itself" in reply and "Nothing you do" not in reply, reply
        assert (await run(client, "cat secret.txt; echo new > made.txt"))["stdout"] == "here\n"
    assert (project / "made.txt").read_text() == "new\n"
    async with stdio(top, "--workspace", ".:ro", "--scope", "ro")("auto", cwd=project) as client:
        assert (await run(client, "cat secret.txt; echo x > secret.txt"))["exit_code"] != 0
    assert (project / "secret.txt").read_text() == "here"
    async with stdio(top, "--workspace", "/etc", "--scope", "etc")("auto", cwd=project) as client:
        refused = await client.call_tool("exec", {"command": "ls"})
        assert refused.is_error and "/etc" in text(refused)


async def test_an_agent_does_not_reach_the_box_of_a_person(top: Path) -> None:
    """A client of MCP neither lists, enters, copies from nor destroys a person's box; its owner may say that it may
    (`--allow`, `--box`, hutch.toml), each thing by itself, and an answer says whose files it got (P6, P15)."""
    mine = hutch(top, "box", "create", "--name", "mine", "--persistent")["id"]
    (top / "secret").write_text("4711\n")
    hutch(top, "box", "cp", str(top / "secret"), "mine:/workspace/secret")
    asked: list[tuple[str, dict[str, str]]] = [
        ("box_lifecycle", {"action": action, "box": box})
        for action, box in (("switch", "mine"), ("switch", mine[:8]), ("takeover", mine), ("destroy", "mine"))
    ]
    asked.append(("box_operation", {"action": "copy_file", "source_box": "mine", "source_path": "secret"}))
    async with stdio(top)("auto") as client:
        await run(client, "true")
        listed = await client.call_tool("box_query", {"action": "list"})
        assert "mine" not in text(listed) and mine not in text(listed), text(listed)
        for name, given in asked:
            refused = await client.call_tool(name, given)
            assert refused.is_error and "no box" in text(refused) and "take it over" not in text(refused), text(refused)
        (lifecycle,) = [tool for tool in (await client.list_tools()).tools if tool.name == "box_lifecycle"]
        assert "takeover" not in str(lifecycle)
    async with stdio(top, "--box", "mine", "--scope", "given")("auto") as client:
        assert [each["name"] for each in await listing(client)] == ["mine"]
        assert (await client.call_tool("box_lifecycle", {"action": "destroy", "box": "mine"})).is_error
    async with stdio(top, "--allow", "list_others,takeover", "--scope", "granted")("auto") as client:
        assert "mine" in [each["name"] for each in await listing(client)]
        assert (await client.call_tool("box_lifecycle", {"action": "destroy", "box": "mine"})).is_error
        taken = await client.call_tool("box_lifecycle", {"action": "takeover", "box": "mine"})
        assert not taken.is_error and "another conversation's" in text(taken), text(taken)
        assert (await run(client, "cat secret"))["stdout"] == "4711\n"
    assert "mine" in [box["name"] for box in boxes(top)]


async def listing(client: Client) -> list[dict[str, Any]]:
    found: dict[str, Any] = facts_of(
        (await client.call_tool("box_query", {"action": "list"})).model_dump(by_alias=True, mode="json")
    )
    boxes: list[dict[str, Any]] = found["boxes"]
    return boxes


def test_without_a_client_it_ends(top: Path) -> None:
    """Nothing to read, and nowhere to write, ends it at once; epoll(7) knows no /dev/null (lesson 12)."""
    ping = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n'
    for said, heard in ((b"", subprocess.PIPE), (ping, subprocess.DEVNULL)):
        with tempfile.TemporaryFile() if said else open(os.devnull, "rb") as wire:
            if said:
                wire.write(said)
                wire.seek(0)
            done = subprocess.run(
                [sys.executable, *HUTCH], env=environ(top), cwd=top, stdin=wire, stdout=heard, stderr=subprocess.PIPE,
                timeout=TIMEOUT_SECONDS,
            )  # fmt: skip
        assert (done.returncode, done.stdout or b"") == (0, b""), done.stderr
        assert b"Traceback" not in done.stderr, done.stderr


async def test_only_some_tools(top: Path) -> None:
    async with stdio(top, "--tools", "read,exec", "--profile", "code")("auto") as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == {"read", "exec"}
        assert (await run(client, "echo hi"))["stdout"] == "hi\n"
        refused = await client.call_tool("write", {"path": "a", "content": "b"})
        assert refused.is_error and "not permitted" in text(refused)


async def test_everything_that_changes_something_can_be_made_to_ask(top: Path) -> None:
    """If nobody can be asked, changes are refused and reading still works."""
    async with stdio(top, "--permissions", "ask")("legacy") as client:
        refused = await client.call_tool("exec", {"command": "ls"})
        assert refused.is_error and "nobody can be asked" in text(refused)
        assert not (await client.call_tool("box_query", {"action": "list"})).is_error


@pytest.mark.parametrize(
    "words", [("--tools", "nonsense"), ("--allow", "everything"), ("--permissions", "nobody"), ("--profile", "no such")]
)
def test_a_wrong_option_is_reported_at_once(words: tuple[str, str], top: Path) -> None:
    with Raw(top, *words) as raw:
        _, said = raw.process.communicate(timeout=TIMEOUT_SECONDS)
        assert raw.process.returncode == 125 and words[1].encode() in said


def test_without_boxes_there_are_no_tools_and_the_reason_is_given(top: Path) -> None:
    """Tools vanish, with the reason, when no box can be made (B5)."""
    with Raw(top, HUTCH_ENABLED="false") as raw:
        assert "switched off" in raw.handshake()["instructions"]
        assert raw.ask("tools/list")["result"]["tools"] == []
        answer = raw.ask("tools/call", name="exec", arguments={"command": "ls"})["result"]
        assert answer["isError"] and facts_of(answer)["error"]["code"] == "disabled"


def test_it_is_a_client_of_the_server_that_owns_the_directory() -> None:
    with serving() as server:
        (server.top / "hutch.toml").write_text("")
        with Raw(server.top) as raw:
            raw.handshake()
            box = raw.run("echo there > file")["box"]
            assert [each["id"] for each in server.unix().good("GET", "/v1/boxes")["boxes"]] == [box]
            assert raw.close() == 0
        with Raw(server.top) as raw:
            raw.handshake()
            assert raw.run("cat file")["stdout"] == "there\n"


def test_skills_add_tools_and_the_client_is_notified(top: Path) -> None:
    """A skill's tools join the list while it is active, and `tools/list_changed` says so (B38)."""
    package = top / "greet"
    (package / "scripts").mkdir(parents=True)
    (package / "SKILL.md").write_text(
        "---\nname: greet\ndescription: Says hello\nhutch:\n  tools:\n  - name: hello\n"
        "    description: Says hello\n    command: [scripts/hello.sh]\n---\nUse hello.\n"
    )
    (package / "scripts" / "hello.sh").write_text("#!/bin/sh\necho hello from a skill\n")
    (package / "scripts" / "hello.sh").chmod(0o755)
    hutch(top, "skill", "install", str(package))
    with Raw(top) as raw:
        assert "greet: Says hello" in raw.handshake()["instructions"]
        names = {tool["name"] for tool in raw.ask("tools/list")["result"]["tools"]}
        assert "greet__hello" not in names
        raw.say(
            b'{"jsonrpc": "2.0", "id": "skill", "method": "tools/call", "params": {"name": "activate_skill", '
            b'"arguments": {"name": "greet"}}}'
        )
        said = [raw.hear(), raw.hear()]
        assert {each.get("method", each.get("id")) for each in said} == {"notifications/tools/list_changed", "skill"}
        assert "greet__hello" in {tool["name"] for tool in raw.ask("tools/list")["result"]["tools"]}
        answer = raw.ask("tools/call", name="greet__hello", arguments={})["result"]
        assert facts_of(answer)["stdout"] == "hello from a skill\n", answer


def test_what_a_command_of_the_box_prints_stays_out_of_the_protocol(top: Path) -> None:
    """Everything on standard output is a message; logs, however many, go to standard error."""
    with Raw(top, "--verbose") as raw:
        raw.handshake()
        for _ in range(3):
            raw.run('echo \'{"jsonrpc": "2.0"}\'; echo noise >&2; echo noise > /dev/stdout')
        assert raw.close() == 0
        assert raw.process.stderr is not None and b"client came" in raw.process.stderr.read()
