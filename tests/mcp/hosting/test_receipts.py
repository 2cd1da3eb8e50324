"""Each call of a hosted server's tool is on record, by whichever way it came, and nothing of what was said is."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import websockets

from hutch.errors import NotFound, ServerFailed
from hutch.keeper.embedded import Hutch
from hutch.mcp.hosting import Hosted
from hutch.model.receipts import Receipt
from mcp import MCPError
from tests.mcp.hosting.hosted_servers import QUICK, plain, project
from tests.mcp.hosting.test_server import connected
from tests.server.serving import Client, Server, serving, until

TOLD = "what-the-model-said-in-confidence"


def calls(receipts: tuple[Receipt, ...]) -> list[tuple[Any, ...]]:
    """Server, tool, verdict and code of each call among them."""
    return [
        (each.details["server"], each.details["tool"], each.details["verdict"], each.error)
        for each in receipts
        if each.op == "mcp.call"
    ]


async def test_every_end_of_a_call_is_a_receipt(tmp_path: Path) -> None:
    """Ok, the tool's own error, a timeout, a caller who left, a tool that is not offered, a server that died; each with
    its time, in the chain of the server's box, and verify covers it (B36)."""
    async with Hutch(mount_roots=()) as hutch:
        async with Hosted(hutch, directory=tmp_path / "registry", settings=QUICK) as hosted:
            await hosted.add("plain", plain(tmp_path / "proj", tool_timeout_sec=1.5, deny=("large",)))
            box = (await hosted.start("plain")).box
            await hosted.call("plain", "echo", {"text": TOLD})
            await hosted.call("plain", "echo", {"no": TOLD})
            with pytest.raises(ServerFailed, match="did not answer"):
                await hosted.call("plain", "sleep", {"seconds": 60})
            leaving = asyncio.create_task(hosted.call("plain", "sleep", {"seconds": 60}))
            await asyncio.sleep(0.3)
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
            with pytest.raises(NotFound):
                await hosted.call("plain", "large", {"characters": 1})
            async with hosted.gateway() as client:
                await client.call_tool("plain__echo", {"text": TOLD})
            async with hosted.session("plain") as client:
                await client.call_tool("echo", {"text": TOLD})
                with pytest.raises(MCPError):
                    await client.call_tool("die", {"code": 5})
            found = await hutch.receipts.list(box)
            assert calls(found) == [
                ("plain", "echo", "ok", ""),
                ("plain", "echo", "error", "tool_error"),
                ("plain", "sleep", "timeout", "timeout"),
                ("plain", "sleep", "cancelled", "cancelled"),
                ("plain", "large", "refused", "not_found"),
                ("plain", "echo", "ok", ""),
                ("plain", "echo", "ok", ""),
                ("plain", "die", "error", "mcp_server"),
            ]
            timed = next(each for each in found if each.error == "timeout")
            assert 1500 <= timed.duration_ms < 60_000
            assert timed.who.session == hutch.session
            assert TOLD not in str(found)
        assert all(check.ok for check in await hutch.receipts.verify())
        assert calls(await hutch.receipts.list(box)), "they outlive the box"


async def test_a_call_without_a_box_is_in_the_daybook(tmp_path: Path) -> None:
    """A server that never came up has no box; that somebody called it is on record all the same."""
    async with Hutch(mount_roots=(), store="memory") as hutch:
        settings = QUICK.but(retry_pauses_sec=())
        async with Hosted(hutch, directory=tmp_path / "registry", settings=settings) as hosted:
            await hosted.add("broken", plain(tmp_path / "proj", env={"EXIT_AT_START": "1"}))
            with pytest.raises(ServerFailed):
                await hosted.call("broken", "echo", {"text": TOLD})
        [daybook] = [chain for chain in await hutch.receipts.chains() if chain.box.startswith("daybook-")]
        assert calls(await hutch.receipts.list(daybook.box)) == [("broken", "echo", "error", "mcp_server")]
        assert all(check.ok for check in await hutch.receipts.verify())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = project(tmp_path_factory.mktemp("receipted") / "proj")
    config = place.parent / "hutch.toml"
    config.write_text(f'[mcp.servers.plain]\ncommand = "python3"\nargs = ["{place}/server.py"]\n')
    with serving(HUTCH_CONFIG=str(config)) as started:
        yield started


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_gateway_s_receipts_name_the_key(server: Server, mode: str) -> None:
    """Who: the key that came, at the gateway and at the server's own path, with the handshake and without."""
    admin = server.unix()
    box = (await asyncio.to_thread(admin.good, "POST", "/v1/mcp-servers/plain/start"))["box"]
    key = server.key("user", "local")
    before = len(listed(admin, box))
    async with connected(server, "/mcp/gateway", key, mode) as client:
        await client.call_tool("plain__echo", {"text": TOLD})
    async with connected(server, "/mcp/servers/plain", key, mode) as client:
        await client.call_tool("echo", {"text": TOLD})
    found = await asyncio.to_thread(listed, admin, box)
    assert [each["details"]["tool"] for each in found[before:]] == ["echo", "echo"]
    assert {each["who"]["key"] for each in found[before:]} == {key.split("_")[1]}
    assert TOLD not in json.dumps(found) and key not in json.dumps(found)
    assert admin.good("POST", "/v1/receipts/verify", {"box": box})["ok"]


async def test_the_raw_relay_leaves_receipts(server: Server) -> None:
    """A WebSocket of lines is a way like the others (B29)."""
    admin = server.unix()
    box = (await asyncio.to_thread(admin.good, "POST", "/v1/mcp-servers/plain/start"))["box"]
    before = len(listed(admin, box))
    key = server.key("user", "local")
    url = server.announcement["url"].replace("http", "ws") + "/mcp/servers/plain/ws"
    async with websockets.connect(url, additional_headers={"authorization": f"Bearer {key}"}) as socket:
        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        for number, method, params in (
            (1, "initialize", about),
            (None, "notifications/initialized", {}),
            (2, "tools/call", {"name": "echo", "arguments": {"text": TOLD}}),
        ):
            answer = {"jsonrpc": "2.0", "method": method, "params": params}
            await socket.send(json.dumps(answer | ({"id": number} if number else {})))
            while number and json.loads(await socket.recv()).get("id") != number:
                pass
    (last,) = await asyncio.to_thread(lambda: until(lambda: listed(admin, box)[before:]))
    assert last["details"] == {"server": "plain", "tool": "echo", "verdict": "ok"}
    assert last["who"]["key"] == key.split("_")[1]


def listed(client: Client, box: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.good("GET", f"/v1/receipts?box={box}")["receipts"]
    return [each for each in found if each["op"] == "mcp.call"]
