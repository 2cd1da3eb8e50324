"""LangBot's own service layer without its database: `BoxService`, `RunnerBoxService` and the tools of agents.

Arguments: the server's address (host:port), a key, and a directory that LangBot and the server share.
"""

import asyncio
import base64
import hashlib
import logging
import os
import shlex
import sys
import types
import uuid

import scenarios
import websockets

ADDRESS, KEY, SHARED = sys.argv[1:4]
os.environ["LANGBOT_BOX_CONTROL_TOKEN"] = KEY
from langbot.pkg.api.http.context import ExecutionContext  # noqa: E402
from langbot.pkg.box.runner import RunnerBoxService  # noqa: E402
from langbot.pkg.box.service import BoxService  # noqa: E402
from langbot.pkg.provider.tools.loaders.native import NativeToolLoader  # noqa: E402
from langbot_plugin.api.entities.builtin.platform.message import File, Image, MessageChain  # noqa: E402
from langbot_plugin.box.errors import BoxError  # noqa: E402

BOX = {
    "enabled": True, "backend": "local", "runtime": {"endpoint": f"ws://{ADDRESS}"},
    "local": {"profile": "default", "image": "", "host_root": "./data/box", "default_workspace": ""},
}  # fmt: skip
INSTANCE, WORKSPACE = f"instance_{uuid.uuid4()}", str(uuid.uuid4())
CONTEXT = ExecutionContext(instance_uuid=INSTANCE, workspace_uuid=WORKSPACE, placement_generation=1)


class Workspaces:
    """The part of LangBot's database that the service layer asks: which instance and workspace this is."""

    instance_uuid = INSTANCE

    async def get_execution_binding(self, workspace_uuid, **_):
        return CONTEXT


class Application:
    """All that the service layer needs of LangBot's application."""

    def __init__(self, **local):
        self.logger = logging.getLogger("langbot")
        self.instance_config = types.SimpleNamespace(data={"box": {**BOX, "local": {**BOX["local"], **local}}})
        self.workspace_service = Workspaces()
        self.box_service = BoxService(self)


class Query:
    """The message that an agent works on."""

    def __init__(self):
        self.query_id = 1
        self.instance_uuid, self.workspace_uuid, self.placement_generation = INSTANCE, WORKSPACE, 1
        self.variables = {}
        self.message_chain = MessageChain([])
        self._execution_context = CONTEXT


async def agents_use_their_tools():
    ap = Application()
    box, runner = ap.box_service, RunnerBoxService(ap.box_service)
    await box.initialize()
    assert box.available, box.get_recent_errors(CONTEXT)
    tools, query = NativeToolLoader(ap), Query()
    await tools.initialize()
    assert {tool.name for tool in await tools.get_tools()} == {"exec", "read", "write", "edit", "glob", "grep"}
    try:
        await tools.invoke_tool("exec", {"command": "id"}, query)
        raise AssertionError("a tool worked without a box")
    except BoxError:
        pass
    session = await runner.acquire(CONTEXT, {"reuse_key": "chat"})
    assert session == await runner.acquire(CONTEXT, {"reuse_key": "chat"}), "the same key gave another box"
    await runner.bind(CONTEXT, query, "run-1", session["id"])

    async def use(name, **parameters):
        return await tools.invoke_tool(name, parameters, query)

    assert (await use("exec", command="echo hi; exit 3"))["exit_code"] == 3
    assert (await use("write", path="/workspace/src/a.py", content="x = 1\nprint(x)\n"))["ok"]
    assert (await use("edit", path="/workspace/src/a.py", old_string="x = 1", new_string="x = 2"))["ok"]
    assert "x = 2" in str(await use("read", path="/workspace/src/a.py"))
    assert "a.py" in str(await use("glob", pattern="**/*.py", path="/workspace"))
    assert "print" in str(await use("grep", pattern="pri.t", path="/workspace"))
    assert (await use("exec", command="sleep 60", timeout_sec=1))["status"] == "timed_out"
    assert (await use("exec", command="python3 src/a.py"))["stdout"] == "2", "the timeout lost the session"
    big = await use("exec", command="head -c 3000000 /dev/zero | tr '\\0' y")
    assert big["stdout_truncated"], big.keys()
    status = await runner.status(CONTEXT)
    assert status["available"] and (status["limit"], status["used"]) == (64, 1), status
    await box.shutdown()


async def attachments_reach_the_box():
    await attach(Application(), 256 << 10, shared=False)  # LangBot sends no larger file by a command.


async def attachments_reach_a_shared_directory():
    await attach(Application(host_root=f"{SHARED}/attachments"), 10 << 20, shared=True)


async def attach(ap, size, *, shared):
    """Import the files of a user's message as a runner does, and look at them in the box."""
    box, runner = ap.box_service, RunnerBoxService(ap.box_service)
    await box.initialize()
    query, tools = Query(), NativeToolLoader(ap)
    data, picture = os.urandom(size), b"\x89PNG\r\n\x1a\n\0\xff"
    query.message_chain = MessageChain([
        File(name="../../etc/Grüße 'an' 兔子; $(id).tar.gz", base64=base64.b64encode(data).decode()),
        Image(base64="data:image/png;base64," + base64.b64encode(picture).decode()),
    ])  # fmt: skip
    session = await runner.acquire(CONTEXT, {"reuse_key": f"attachments {size}"})
    await runner.bind(CONTEXT, query, "run-1", session["id"])
    assert os.path.isdir(box.workspace_host_path(CONTEXT)) is shared, "LangBot would take the other way"
    items = (await runner.import_attachments(query, None))["items"]
    assert [(each["name"], each["size"]) for each in items] == [
        ("Grüße_an_兔子_id.tar.gz", size), ("image_1.png", len(picture))
    ], items  # fmt: skip
    for item, sent in zip(items, (data, picture), strict=True):
        path = item["path"]
        assert path.startswith("/workspace/inbox/"), path
        done = await tools.invoke_tool("exec", {"command": f"sha256sum < {shlex.quote(path)}"}, query)
        assert done["stdout"].split()[:1] == [hashlib.sha256(sent).hexdigest()], done
        directory, name = os.path.split(path)
        done = await tools.invoke_tool("exec", {"command": f"cd {directory} && ls -A && echo more >> {name}"}, query)
        assert done["ok"] and done["stdout"] == name, done
    exported = await runner.export_files(query, [items[1]["path"]])
    assert exported["items"][0]["size"] == len(picture) + len("more\n"), exported
    await box.shutdown()


async def servers_are_relayed():
    ap = Application()
    box = ap.box_service
    await box.initialize()
    await box.create_session(CONTEXT, {"session_id": "mcp-shared", "persistent": True, "read_only_rootfs": False})
    spec = {"process_id": "p", "command": "python3", "args": ["-uc", "while True: print('<' + input() + '>')"]}
    await box.start_managed_process(CONTEXT, "mcp-shared", spec)
    url, headers = await box.get_managed_process_websocket_connection(CONTEXT, "mcp-shared", "p")
    async with websockets.connect(url, additional_headers=headers, subprotocols=["mcp"], proxy=None) as relay:
        await relay.send("hello")
        assert (await relay.recv()).strip() == "<hello>"
    info = await box.get_managed_process(CONTEXT, "mcp-shared", "p")
    assert getattr(info, "status", None) or info["status"], info
    await box.stop_managed_process(CONTEXT, "mcp-shared", "p")
    await box.shutdown()
    await asyncio.sleep(0)


scenarios.run([
    agents_use_their_tools, attachments_reach_the_box, attachments_reach_a_shared_directory, servers_are_relayed
])  # fmt: skip
