"""A LangBot of our own, made of the client classes of `langbot-plugin`; it needs an environment with that package.

Arguments of every script: the server's address (host:port) and a key.
"""

import asyncio
import contextlib
import json
import logging
import sys
import urllib.request

import websockets
from langbot_plugin.box import models
from langbot_plugin.box.client import ActionRPCBoxClient
from langbot_plugin.box.tenancy import namespace_session_id
from langbot_plugin.entities.io.actions.enums import CommonAction
from langbot_plugin.entities.io.context import ActionContext
from langbot_plugin.runtime.io.controllers.ws.client import WebSocketClientController
from langbot_plugin.runtime.io.handler import Handler

ADDRESS, KEY = sys.argv[1:3]
TOKEN = "x-langbot-box-control-token"
logging.disable(logging.CRITICAL)


def context(instance, workspace="w", generation=1):
    return ActionContext(instance_uuid=instance, workspace_uuid=workspace, placement_generation=generation)


@contextlib.asynccontextmanager
async def connected(instance, key=KEY, config=None):
    """A connected and initialised client of one LangBot, as LangBot itself makes it."""
    headers = {"X-LangBot-Instance-Id": instance, "X-LangBot-Box-Control-Token": key}
    client, ready, failed = ActionRPCBoxClient(logging.getLogger("box")), asyncio.Event(), []

    async def on_connected(connection):
        handler = Handler(connection)
        client.set_handler(handler)
        running = asyncio.ensure_future(handler.run())
        await handler.call_action(CommonAction.PING, {})
        await client.init(config or {"enabled": True, "backend": "local", "unknown": {"member": 1}})
        ready.set()
        await running

    async def on_failed(controller, error=None):
        failed.append(error)
        ready.set()

    controller = WebSocketClientController(f"ws://{ADDRESS}/rpc/ws", on_failed, headers)
    task = asyncio.ensure_future(controller.run(on_connected))
    try:
        waiting = asyncio.ensure_future(ready.wait())
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if failed or task.done():
            raise ConnectionError(f"not connected: {failed}")
        yield client
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def spec(session_id="s", cmd="", **fields):
    return models.BoxSpec(session_id=session_id, cmd=cmd, **fields)


async def refused(kind, work, *texts):
    """The error must be exactly of this class, and name these texts."""
    try:
        answer = await work
    except kind as error:
        assert type(error) is kind, type(error)
        assert all(text in str(error) for text in texts), str(error)
        return str(error)
    raise AssertionError(f"not refused: {answer}")


async def handshake(path, **headers):
    """The status and the body of a refused WebSocket, or 101."""
    try:
        async with websockets.connect(f"ws://{ADDRESS}{path}", additional_headers=headers, proxy=None):
            return 101, b""
    except websockets.exceptions.InvalidStatus as error:
        return error.response.status_code, error.response.body


async def closes(relay):
    """Whatever else comes, the server closes this relay as one that has ended well."""
    try:
        while True:
            await asyncio.wait_for(relay.recv(), 60)
    except websockets.exceptions.ConnectionClosed as closed:
        assert closed.rcvd is not None and closed.rcvd.code == 1000, closed


async def refused_by(call):
    """The text of the error, or what was answered instead."""
    try:
        return f"accepted: {await call}"
    except Exception as error:
        return str(error)


ECHO = """
import sys
print("ready", file=sys.stderr, flush=True)
for line in sys.stdin:
    print("<" + line.strip() + ">", flush=True)
"""


def called(method, path, instance, **body):
    """The answer of Hutch's own API to the key and session of a LangBot."""
    headers = {"Hutch-Key": KEY, "Hutch-Session": f"langbot:{instance}", "Content-Type": "application/json"}
    data = json.dumps(body).encode() if method == "POST" else None
    request = urllib.request.Request(f"http://{ADDRESS}{path}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read() or b"null")


def relay_of(where, session, process, **more):
    headers = {
        "x-langbot-instance-id": where.instance_uuid, TOKEN: KEY, "x-langbot-workspace-id": where.workspace_uuid,
        "x-langbot-placement-generation": str(where.placement_generation), **more,
    }  # fmt: skip
    path = f"/v1/sessions/{namespace_session_id(where, session)}/managed-process/{process}/ws"
    return path, headers


def attached(path, headers):
    return websockets.connect(f"ws://{ADDRESS}{path}", additional_headers=headers, subprotocols=["mcp"], proxy=None)
