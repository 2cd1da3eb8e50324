"""`/mcp` on the server: keys, owners, roles, slots, sessions and their end, broken streams, a restart."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hutch import Hutch
from tests.mcp.serving.clients import ERAS, eventually, facts_of, over_http, run, text
from tests.server.serving import Answer, Client, Server, serving

INITIALIZE = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "plain", "version": "1"}},
}  # fmt: skip
LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
TYPES = {"content_type": "application/json", "accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as started:
        yield started


def post(client: Client, message: dict[str, Any], path: str = "/mcp", **headers: str) -> Answer:
    return client.call("POST", path, message, **{**TYPES, **headers})


def begin(client: Client, path: str = "/mcp") -> str:
    """The id of a new session."""
    answer = post(client, INITIALIZE, path)
    assert answer.status == 200, answer.body
    session = answer.headers["mcp-session-id"]
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert post(client, note, mcp_session_id=session).status == 202
    return session


def messages(answer: Answer) -> list[dict[str, Any]]:
    lines = [line[6:] for line in answer.body.decode().splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def call_of(command: str, number: int = 7) -> dict[str, Any]:
    params = {"name": "exec", "arguments": {"command": command}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def test_the_door_comes_first(server: Server) -> None:
    """No key, a wrong one, a foreign Host, a page of another site, an unknown path below: none gets to the SDK."""
    key = server.key("user", "door")
    assert post(server.tcp(), INITIALIZE).status == 401
    assert post(server.tcp("hutch_nonsense"), INITIALIZE).status == 401
    good = server.tcp(key)
    assert post(good, INITIALIZE, host="evil.example").status == 403
    assert post(good, INITIALIZE, origin="https://evil.example").status == 403
    assert post(good, INITIALIZE, sec_fetch_site="cross-site").status == 403
    assert post(good, INITIALIZE, "/mcp/nowhere").status == 404
    assert good.call("PUT", "/mcp", b"{}").status == 405
    assert post(good, {"jsonrpc": "2.0", "id": 1, "method": "x", "params": {"long": "x" * (17 << 20)}}).status == 413
    (answered,) = messages(post(good, INITIALIZE, "/mcp?nonsense=1"))
    assert "nonsense" in answered["result"]["instructions"]
    answer = post(good, INITIALIZE)
    assert answer.status == 200 and answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store" and answer.headers["hutch-request"]


def test_a_session_belongs_to_its_key(server: Server) -> None:
    mine, foreign = server.tcp(server.key("user", "anna")), server.tcp(server.key("user", "boris"))
    session = begin(mine)
    assert post(mine, LIST, mcp_session_id=session).status == 200
    assert post(foreign, LIST, mcp_session_id=session).status == 404
    assert foreign.call("DELETE", "/mcp", mcp_session_id=session, **TYPES).status == 404
    assert post(mine, LIST, mcp_session_id="made-up").status == 404
    assert post(mine, LIST).status == 400, "neither a session nor a handshake"
    assert mine.call("DELETE", "/mcp", mcp_session_id=session).status == 200
    assert post(mine, LIST, mcp_session_id=session).status == 404


def test_what_is_no_message_is_refused_and_survived(server: Server) -> None:
    client = server.tcp(server.key("user", "wild"))
    session = begin(client)
    for body in (b"", b"{", b"[]", b"\xff\xfe", b'{"jsonrpc": "2.0"}', b"null"):
        for more in ({}, {"mcp_session_id": session}, {"mcp_protocol_version": "2026-07-28"}):
            assert 400 <= client.call("POST", "/mcp", body, **TYPES, **more).status < 500, (body, more)
    assert 400 <= post(client, LIST, mcp_protocol_version="1999-01-01").status < 500
    assert post(client, LIST, accept="image/png", mcp_session_id=session).status == 406
    assert post(client, LIST, mcp_session_id=session).status == 200


def test_sessions_of_one_owner_are_bounded(server: Server) -> None:
    client = server.tcp(server.key("user", "many"))
    sessions = [begin(client) for _ in range(64)]
    full = post(client, INITIALIZE)
    assert full.status == 429 and full.json()["code"] == "quota"
    begin(server.tcp(server.key("user", "few")))
    for session in sessions:
        assert client.call("DELETE", "/mcp", mcp_session_id=session).status == 200
    begin(client)


async def test_owners_are_separate(server: Server) -> None:
    """Two owners with the same client and the same scope have boxes of their own, and see only those."""
    for era in ERAS:
        anna, boris = (over_http(server, server.key("user", f"{name}-{era}"), "?scope=one") for name in "ab")
        async with anna(era) as a, boris(era) as b:
            mine = await run(a, "echo secret > file")
            other = await run(b, "ls")
            assert mine["box"] != other["box"] and other["stdout"] == ""
            assert mine["box"] not in text(await b.call_tool("box_query", {"action": "list"}))
            stolen = await b.call_tool("box_lifecycle", {"action": "switch", "box": mine["box"]})
            assert stolen.is_error, text(stolen)


async def test_two_clients_of_one_scope_have_boxes_of_their_own(server: Server) -> None:
    connect = over_http(server, server.key("user", "twice"))
    async with connect("legacy") as first, connect("legacy") as second:
        mine, other = await run(first, "true"), await run(second, "true")
        assert mine["box"] != other["box"]
        assert "other live client" in (second.instructions or "")


async def test_an_agent_does_not_reach_other_boxes_of_its_owner(server: Server) -> None:
    """Neither a person's box nor that of another client with the same key; `?box=` gives one (P6, P15)."""
    key = server.key("user", "shared")
    async with Hutch(server.announcement["url"], key=key, session="person") as hutch:
        box = await hutch.create(name="person", retention="persistent")
        await box.files.write("secret", "4711")
        for era in ERAS:
            async with over_http(server, key)(era, name="one") as one, over_http(server, key)(era, name="two") as two:
                other = (await run(one, "echo 4711 > secret"))["box"]
                await run(two, "true")
                await one.call_tool("box_lifecycle", {"action": "release"})
                listed = text(await two.call_tool("box_query", {"action": "list"}))
                assert other not in listed and box.id not in listed and "person" not in listed
                for name in (other, other[:6], box.id, "person"):
                    for action in ("switch", "takeover", "destroy"):
                        refused = await two.call_tool("box_lifecycle", {"action": action, "box": name})
                        assert refused.is_error and "take it over" not in text(refused), text(refused)
                    copy = {"action": "copy_file", "source_box": name, "source_path": "secret"}
                    assert (await two.call_tool("box_operation", copy)).is_error
            async with over_http(server, key, "?box=person&scope=given")(era) as given:
                assert "person" in text(await given.call_tool("box_query", {"action": "list"}))
                assert (await given.call_tool("box_lifecycle", {"action": "destroy", "box": "person"})).is_error
        assert (await box.exec("cat secret")).stdout == "4711", "its lease, too, is the person's still"
        await box.destroy()


async def test_an_observer_only_looks(server: Server) -> None:
    """Read-only tools only, on a box that is there, without its lease (P8)."""
    owner, observer = server.key("user", "seen"), server.key("observer", "seen")
    async with over_http(server, owner)("legacy") as client:
        box = (await run(client, "echo look > file"))["box"]
        for query in ("", f"?box={box}"):
            async with over_http(server, observer, query)("auto") as watcher:
                names = {tool.name for tool in (await watcher.list_tools()).tools}
                assert "read" in names and not names & {"exec", "write", "edit", "job", "box_lifecycle"}
                listed = await watcher.call_tool("box_query", {"action": "list"})
                assert not listed.is_error and (box in text(listed)) == bool(query), text(listed)
                seen = await watcher.call_tool("read", {"path": "file"})
                assert not seen.is_error and "look" in text(seen), text(seen)
                for name, given in (("exec", {"command": "ls"}), ("write", {"path": "x", "content": "y"})):
                    assert (await watcher.call_tool(name, given)).is_error
        assert (await run(client, "ls"))["stdout"] == "file\n", "the lease is still the owner's"


async def test_a_revoked_key_can_do_nothing_more(server: Server) -> None:
    made = server.unix().good("POST", "/v1/keys", {"role": "user", "owner": "fired"})
    client = server.tcp(made["text"])
    session = begin(client)
    assert server.unix().call("DELETE", f"/v1/keys/{made['key']['id']}").status < 300
    assert post(client, call_of("true"), mcp_session_id=session).status == 401


def test_a_broken_stream_is_taken_up_again(server: Server) -> None:
    """A client that lost the answer's stream asks for what came after the last event it saw."""
    client = server.tcp(server.key("user", "lossy"))
    session = begin(client)
    assert post(client, call_of("true"), mcp_session_id=session).status == 200
    waiting = "while [ ! -e go ]; do sleep 0.05; done; echo whole answer"
    said = {**TYPES, "mcp_session_id": session, "mcp_protocol_version": "2025-11-25"}
    connection, response = client.open("POST", "/mcp", call_of(waiting, 21), **said)
    event = ""
    while not event:
        line = response.readline().decode().strip()
        event = line[3:].strip() if line.startswith("id:") else ""
    connection.close()
    assert post(client, call_of("touch go", 22), mcp_session_id=session).status == 200
    connection, response = client.open("GET", "/mcp", **{**said, "accept": "text/event-stream"}, last_event_id=event)
    try:
        while not (line := response.readline().decode()).startswith("data: {"):
            assert line, "the stream ended without the answer"
        answer = json.loads(line[6:])
    finally:
        connection.close()
    assert answer["id"] == 21 and facts_of(answer["result"])["stdout"] == "whole answer\n"


def test_deleting_a_session_ends_its_commands_and_leaves_its_box(server: Server) -> None:
    client = server.tcp(server.key("user", "leaver"))
    session = begin(client)
    (first,) = messages(post(client, call_of("touch there"), mcp_session_id=session))
    box = facts_of(first["result"])["box"]
    connection, _ = client.open("POST", "/mcp", call_of("sleep 4242", 9), **TYPES, mcp_session_id=session)
    assert client.call("DELETE", "/mcp", mcp_session_id=session).status == 200
    connection.close()
    session = begin(client)
    count = "cat /proc/[0-9]*/comm | grep -c '^sleep$'; ls"
    (last,) = messages(post(client, call_of(count), mcp_session_id=session))
    reply = facts_of(last["result"])
    assert (reply["box"], reply["stdout"]) == (box, "0\nthere\n")


async def test_after_a_restart_the_client_finds_its_box() -> None:
    """An old session is gone (404). A client that initialises again finds the box by its scope."""
    with serving() as server:
        key = server.key("user", "stays")
        client = server.tcp(key)
        session = begin(client)
        (answer,) = messages(post(client, call_of("echo kept > file"), mcp_session_id=session))
        box = facts_of(answer["result"])["box"]
        listening, _ = client.open("GET", "/mcp", accept="text/event-stream", mcp_session_id=session)
        assert server.end() == 0
        listening.close()
        server.start()
        client = server.tcp(key)
        assert post(client, LIST, mcp_session_id=session).status == 404
        session = begin(client)
        (answer,) = messages(post(client, call_of("cat file"), mcp_session_id=session))
        reply = facts_of(answer["result"])
        assert (reply["box"], reply["stdout"]) == (box, "kept\n")


def test_a_busy_client_does_not_hold_up_the_end() -> None:
    """What runs for an MCP client gets the drain's time, like every request, and is killed then."""
    with serving(HUTCH_SERVER_DRAIN_SEC="1") as server:
        key = server.key("user", "busy")
        client = server.tcp(key)
        session = begin(client)
        assert post(client, call_of("true"), mcp_session_id=session).status == 200
        connection, _ = client.open("POST", "/mcp", call_of("sleep 4242", 9), **TYPES, mcp_session_id=session)
        assert server.end() == 0
        connection.close()
        server.start()
        client = server.tcp(key)
        session = begin(client)
        count = "cat /proc/[0-9]*/comm | grep -c '^sleep$' || true"
        (answer,) = messages(post(client, call_of(count), mcp_session_id=session))
        assert facts_of(answer["result"])["stdout"] == "0\n"


async def test_a_new_skill_is_announced_to_listening_clients(server: Server, tmp_path: Path) -> None:
    """`tools/list_changed` in both eras: on the session's own stream, or on the one a client subscribed with."""
    package = tmp_path / "count"
    (package / "scripts").mkdir(parents=True)
    (package / "SKILL.md").write_text(
        "---\nname: count\ndescription: Counts\nhutch:\n  tools:\n  - name: one\n    description: One\n"
        "    command: [scripts/one.sh]\n---\nCount.\n"
    )
    (package / "scripts" / "one.sh").write_text("#!/bin/sh\necho 1\n")
    (package / "scripts" / "one.sh").chmod(0o755)
    key = server.key("user", "skilled")
    async with Hutch(server.announcement["url"], key=key) as hutch:
        await hutch.skills.install(package)
    connect = over_http(server, key)
    heard: list[str] = []

    async def hear(message: Any) -> None:
        heard.append(getattr(message, "method", ""))

    async def reply() -> bool:
        return "notifications/tools/list_changed" in heard

    async with connect("legacy", message_handler=hear) as client:
        await client.list_tools()
        await asyncio.sleep(0)
        assert not (await client.call_tool("activate_skill", {"name": "count"})).is_error
        await eventually(reply)
        assert "count__one" in {tool.name for tool in (await client.list_tools()).tools}
    async with connect("auto", name="other") as client:
        await client.list_tools()
        async with client.listen(tools_list_changed=True) as events:
            assert not (await client.call_tool("activate_skill", {"name": "count"})).is_error
            async for event in events:
                assert type(event).__name__ == "ToolsListChanged"
                break
