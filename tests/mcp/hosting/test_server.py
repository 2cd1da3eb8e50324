"""Hosted servers behind `hutch serve`: endpoints, keys, roles and owners; and what a restart leaves."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import websockets
from mcp.client.streamable_http import streamable_http_client

from mcp import Client as McpClient
from tests.mcp.hosting.hosted_servers import project, text_of, where
from tests.server.serving import Client, Server, serving, until


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project(tmp_path_factory.mktemp("hosted") / "proj")


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[Server]:
    config = place.parent / "hutch.toml"
    config.write_text(
        f'[mcp]\nhealth_sec = 1\n[mcp.servers.plain]\ncommand = "python3"\nargs = ["{place}/server.py"]\n'
        'start = "eager"\nenv = { API_TOKEN = "sk-0123456789" }\n'
        '[mcp.servers.lazy]\ncommand = "python3"\n'
        f'args = ["{place}/server.py"]\nallow = ["echo", "where"]\n'
    )
    with serving(HUTCH_CONFIG=str(config)) as started:
        yield started


@asynccontextmanager
async def connected(server: Server, path: str, key: str, mode: Any = "legacy") -> AsyncIterator[McpClient]:
    headers = {"authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        url = server.announcement["url"] + path
        async with McpClient(streamable_http_client(url, http_client=http), mode=mode) as client:
            yield client


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_gateway_and_alone(server: Server, mode: str) -> None:
    """Both endpoints, with the handshake and without; a key of the same owner opens them."""
    key = server.key("user", "local")
    async with connected(server, "/mcp/gateway", key, mode) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert {"plain__echo", "plain__sleep", "lazy__echo", "lazy__where"} <= names
        assert "lazy__sleep" not in names
        assert text_of(await client.call_tool("plain__echo", {"text": "through"})) == "through"
    async with connected(server, "/mcp/servers/lazy", key, mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["echo", "where"]
        assert where(await client.call_tool("where", {}))["cwd"] == "/mnt/project"


async def test_lines_of_a_websocket(server: Server) -> None:
    """One frame is one message, both ways (B29, lesson 36)."""
    headers = {"authorization": f"Bearer {server.key('user', 'local')}"}
    url = server.announcement["url"].replace("http", "ws") + "/mcp/servers/plain/ws"
    async with websockets.connect(url, additional_headers=headers, max_size=None) as socket:

        async def ask(number: int, method: str, **params: Any) -> Any:
            await socket.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))
            while (answer := json.loads(await socket.recv())).get("id") != number:
                pass
            return answer["result"]

        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        assert (await ask(1, "initialize", **about))["serverInfo"]["name"] == "plain"
        await socket.send('{"jsonrpc": "2.0", "method": "notifications/initialized"}')
        answer = await ask(2, "tools/call", name="large", arguments={"characters": 100_000})
        assert len(answer["content"][0]["text"]) == 100_000
        await socket.send("this is no message")
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


def test_looking_and_calling(server: Server) -> None:
    """B37 over HTTP: state, phase, box, retries; no secret; tools and a call without any MCP client."""
    client = server.unix()
    info = client.good("POST", "/v1/mcp-servers/plain/start")
    assert (info["state"], info["phase"], info["boxed"], info["env"]) == ("ready", "runtime", True, ["API_TOKEN"])
    assert info["box"] in {box["id"] for box in client.good("GET", "/v1/boxes")["boxes"]}
    assert "sk-0123456789" not in json.dumps(client.good("GET", "/v1/mcp-servers"))
    assert "echo" in [tool["name"] for tool in client.good("GET", "/v1/mcp-servers/plain/tools")["tools"]]
    answer = client.good(
        "POST", "/v1/mcp-servers/plain/call", {"tool": "environment", "arguments": {"name": "API_TOKEN"}}
    )
    assert text_of(answer) == "sk-0123456789"
    assert "plain server says hello" in client.good("GET", "/v1/mcp-servers/plain/logs")["lines"]
    assert "sk-0123456789" not in server.log.read_text()


def test_owners_and_roles(server: Server, place: Path) -> None:
    """Another owner's servers are not there; an observer reads and changes nothing; what reaches past the boxes is an
    admin's to register."""
    stranger = server.tcp(server.key("user", "somebody-else"))
    assert stranger.good("GET", "/v1/mcp-servers") == {"servers": []}
    assert stranger.call("GET", "/v1/mcp-servers/plain").status == 404
    assert _handshake(stranger, "/mcp/servers/plain").status == 404
    observer = server.tcp(server.key("observer", "local"))
    assert observer.good("GET", "/v1/mcp-servers/plain")["name"] == "plain"
    for path in ("/v1/mcp-servers/plain/stop", "/v1/mcp-servers/plain/call"):
        assert observer.call("POST", path, {}).status == 403
    for path in ("/mcp/gateway", "/mcp/servers/plain"):
        assert _handshake(observer, path).status == 403
    assert _handshake(server.tcp(), "/mcp/gateway").status == 401
    elsewhere = {"name": "far", "definition": {"url": "http://127.0.0.1:9/mcp"}}
    assert stranger.call("POST", "/v1/mcp-servers", elsewhere).status == 403
    paths = {"name": "peek", "definition": {"command": "python3", "args": [f"{place}/server.py"]}}
    stranger.good("POST", "/v1/mcp-servers", paths)
    refused = stranger.call("POST", "/v1/mcp-servers/peek/start")
    assert refused.status == 424
    assert "allowed root" in refused.json()["message"]
    assert refused.json()["details"]["phase"] == "session_create"
    stranger.good("DELETE", "/v1/mcp-servers/peek")


def _handshake(client: Client, path: str) -> Any:
    body = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }  # fmt: skip
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    return client.call("POST", path, body, **headers)


def test_registering_and_importing(server: Server, place: Path) -> None:
    """By an admin: a table of another client's, and a definition of its own; both work at once, and go."""
    client = server.unix()
    table = {"mcpServers": {"copy of plain": {"command": "python3", "args": [f"{place}/server.py"]}, "bad": {}}}
    answer = client.good("POST", "/v1/mcp-servers/import", {"servers": table})
    assert [each["name"] for each in answer["servers"]] == ["copy-of-plain"]
    assert any("bad" in note for note in answer["notes"])
    result = client.good("POST", "/v1/mcp-servers/copy-of-plain/call", {"tool": "echo", "arguments": {"text": "hi"}})
    assert text_of(result) == "hi"
    assert client.call("POST", "/v1/mcp-servers", {"name": "plain", "definition": {"command": "x"}}).status == 409
    client.good("DELETE", "/v1/mcp-servers/copy-of-plain")
    assert client.call("GET", "/v1/mcp-servers/copy-of-plain").status == 404
    assert client.call("DELETE", "/v1/mcp-servers/plain").status == 403


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_heals(server: Server, ending: signal.Signals) -> None:
    """After a restart of Hutch, however it ended, the servers are back and no box of the earlier run is left (B36)."""
    client = server.unix()
    before = client.good("POST", "/v1/mcp-servers/plain/start")["box"]
    server.end(ending)
    (server.state / "server.json").unlink(missing_ok=True)  # of a killed one: not the next one's word
    server.start()
    info = until(lambda: _ready(client))
    assert info["box"] != before
    assert text_of(client.good("POST", "/v1/mcp-servers/plain/call", {"tool": "echo", "arguments": {"text": "on"}}))
    boxes = [box for box in client.good("GET", "/v1/boxes")["boxes"] if "mcp-server" in box["spec"]["labels"]]
    assert before not in [box["id"] for box in boxes]
    assert len({box["spec"]["labels"]["mcp-server"] for box in boxes}) == len(boxes)


def _ready(client: Client) -> Any:
    info = client.good("GET", "/v1/mcp-servers/plain")
    return info if info["state"] == "ready" else None


async def test_elsewhere_passes_through(server: Server) -> None:
    """A server of streamable HTTP is listed and used like the others: here, one of Hutch's own endpoints."""
    admin = server.unix()
    key = server.key("user", "local")
    url = server.announcement["url"] + "/mcp/servers/lazy"
    definition = {"url": url, "headers": {"Authorization": f"Bearer {key}"}}
    admin.good("POST", "/v1/mcp-servers", {"name": "far", "definition": definition})
    try:
        info = await asyncio.to_thread(admin.good, "POST", "/v1/mcp-servers/far/start")
        assert (info["transport"], info["boxed"], info["state"]) == ("http", False, "ready")
        assert key not in json.dumps(info)
        async with connected(server, "/mcp/gateway", key) as client:
            assert text_of(await client.call_tool("far__echo", {"text": "around"})) == "around"
    finally:
        await asyncio.to_thread(admin.good, "DELETE", "/v1/mcp-servers/far")
