"""A small server that speaks what the E2B SDK speaks, over real native boxes: sandboxes by REST, processes by Connect.

Only what a client of sandboxes needs that brings its own guest; the facts are those of the public SDK.
"""

import asyncio
import base64
import contextlib
import json
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import uvicorn

from hutch import Hutch
from hutch.errors import HutchError

KEY = "e2b_" + "0" * 40
ENVD = "0.5.8"


class Sandbox:
    def __init__(self, box: Any, asked: dict[str, Any]) -> None:
        self.box = box
        self.id = "i" + box.id
        self.asked = asked
        self.started = time.time()
        self.ends = self.started + asked.get("timeout", 300)
        self.paused = False
        self.jobs: dict[int, Any] = {}
        self.streams: set[asyncio.Task[None]] = set()
        self.timeouts: list[int] = []
        """Every end that a client has asked for."""

    def shown(self) -> dict[str, Any]:
        return {
            "templateID": self.asked["templateID"], "sandboxID": self.id, "clientID": "c", "envdVersion": ENVD,
            "envdAccessToken": "token", "metadata": self.asked.get("metadata", {}), "cpuCount": 1, "memoryMB": 512,
            "diskSizeMB": 512, "state": "paused" if self.paused else "running",
            "startedAt": _moment(self.started), "endAt": _moment(self.ends),
        }  # fmt: skip


class Server:
    """`url` is where it is; `sandboxes` are those that live."""

    def __init__(self) -> None:
        self.sandboxes: dict[str, Sandbox] = {}
        self.hutch = Hutch()
        self.uploads = 0

    # --- one request -----------------------------------------------------------------------------------------

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        body = await _body(receive)
        try:
            if "e2b-sandbox-id" in headers:
                await self._inside(scope, headers, body, send)
            elif headers.get("x-api-key") != KEY:
                await _reply(send, 401, {"code": 401, "message": "wrong API key"})
            else:
                await self._control(scope["method"], scope["path"], scope["query_string"].decode(), body, send)
        except HutchError as error:
            await _reply(send, 500, {"code": 500, "message": error.message})

    async def _control(self, method: str, path: str, query: str, body: bytes, send: Any) -> None:
        words = [word for word in path.split("/") if word and word != "v2"]
        asked = json.loads(body) if body else {}
        if words == ["sandboxes"] and method == "POST":
            await _reply(send, 201, (await self._create(asked)).shown())
            return
        if words == ["sandboxes"]:
            wanted = dict(urllib.parse.parse_qsl(dict(urllib.parse.parse_qsl(query)).get("metadata", "")))
            wanted = {urllib.parse.unquote(name): urllib.parse.unquote(value) for name, value in wanted.items()}
            found = [each.shown() for each in self.sandboxes.values()
                     if wanted.items() <= each.asked.get("metadata", {}).items()]  # fmt: skip
            await _reply(send, 200, found)
            return
        sandbox = self.sandboxes.get(words[1])
        if sandbox is None:
            await _reply(send, 404, {"code": 404, "message": "sandbox not found"})
            return
        await self._change(sandbox, method, words[2:], asked, send)

    async def _change(self, sandbox: Sandbox, method: str, verb: list[str], asked: Any, send: Any) -> None:
        if method == "DELETE":
            await self._end(sandbox)
        elif verb == ["timeout"]:
            sandbox.timeouts.append(asked["timeout"])
            sandbox.ends = time.time() + asked["timeout"]
        elif verb == ["pause"]:
            sandbox.paused = True
            for stream in sandbox.streams:
                stream.cancel()
            await asyncio.gather(*sandbox.streams, return_exceptions=True)
            await sandbox.box.pause()
        elif verb == ["connect"]:
            resumed, sandbox.paused = sandbox.paused, False
            sandbox.ends = max(sandbox.ends, time.time() + asked.get("timeout", 0))
            if resumed:
                await sandbox.box.resume()
            await _reply(send, 201 if resumed else 200, sandbox.shown())
            return
        elif not verb:
            await _reply(send, 200, sandbox.shown())
            return
        await _reply(send, 204, None)

    async def _create(self, asked: dict[str, Any]) -> Sandbox:
        if asked["templateID"] != "base":
            raise HutchError(f"template {asked['templateID']!r} not found")
        box = await self.hutch.create(
            read_only_root=False, limits={"disk_mb": 256, "memory_mb": 512, "pids": 256, "timeout_sec": 60},
            network="on" if asked.get("allow_internet_access", True) else "off", idle_timeout_sec=0,
            env=asked.get("envVars") or {},
        )  # fmt: skip
        sandbox = Sandbox(box, asked)
        self.sandboxes[sandbox.id] = sandbox
        return sandbox

    async def _end(self, sandbox: Sandbox) -> None:
        if self.sandboxes.pop(sandbox.id, None) is not None:
            await sandbox.box.destroy()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            for sandbox in [each for each in self.sandboxes.values() if each.ends < time.time()]:
                await self._end(sandbox)

    # --- inside a sandbox ------------------------------------------------------------------------------------

    async def _inside(self, scope: Any, headers: dict[str, str], body: bytes, send: Any) -> None:
        sandbox = self.sandboxes.get(headers["e2b-sandbox-id"])
        if sandbox is None or sandbox.paused:
            await _reply(send, 502, {"code": 502, "message": "The sandbox was not found", "sandboxId": "x"})
            return
        path, method = scope["path"], scope["method"]
        if path == "/health":
            await _reply(send, 204, None)
        elif path == "/files" and method == "POST":
            await self._upload(sandbox, scope, headers, body, send)
        elif path == "/process.Process/Start":
            await self._start(sandbox, headers, json.loads(body[5:]), send)
        elif path.startswith("/process.Process/"):
            await self._told(sandbox, path.rpartition("/")[2], json.loads(body or b"{}"), send)
        else:
            await _reply(send, 501, {"code": "unimplemented", "message": path})

    async def _upload(self, sandbox: Sandbox, scope: Any, headers: dict[str, str], body: bytes, send: Any) -> None:
        query = dict(urllib.parse.parse_qsl(scope["query_string"].decode()))
        if "multipart" in headers["content-type"]:
            boundary = headers["content-type"].partition("boundary=")[2].encode()
            body = body.split(b"--" + boundary)[1].partition(b"\r\n\r\n")[2][:-2]
        self.uploads += 1
        await sandbox.box.files.write(query["path"], body)
        await _reply(send, 200, [{"path": query["path"], "name": query["path"].rpartition("/")[2], "type": "file"}])

    async def _start(self, sandbox: Sandbox, headers: dict[str, str], asked: dict[str, Any], send: Any) -> None:
        process = asked["process"]
        job = await sandbox.box.start(
            [process["cmd"], *process.get("args", [])], user=_user(headers), env=process.get("envs") or {},
            cwd=process.get("cwd") or "/tmp",
        )  # fmt: skip
        pid = len(sandbox.jobs) + 1
        sandbox.jobs[pid] = job
        if not asked.get("stdin"):
            await job.close_stdin()
        await send({"type": "http.response.start", "status": 200,
                    "headers": [(b"content-type", b"application/connect+json")]})  # fmt: skip
        await _event(send, {"start": {"pid": pid}})
        streaming = asyncio.create_task(_stream(job, send))
        sandbox.streams.add(streaming)
        try:
            await asyncio.wait([streaming])
        finally:
            sandbox.streams.discard(streaming)
            if not streaming.cancelled():
                streaming.exception()  # the sandbox was killed: its stream breaks off
        await send({"type": "http.response.body", "body": b""})

    async def _told(self, sandbox: Sandbox, verb: str, asked: dict[str, Any], send: Any) -> None:
        job = sandbox.jobs.get(asked.get("process", {}).get("pid", 0))
        if job is None:
            await _reply(send, 404, {"code": "not_found", "message": "no such process"})
            return
        if verb == "SendInput":
            await job.write(base64.b64decode(asked["input"]["stdin"]))
        elif verb == "CloseStdin":
            await job.close_stdin()
        elif verb == "SendSignal":
            await job.signal(9)
        else:
            await _reply(send, 501, {"code": "unimplemented", "message": verb})
            return
        await _reply(send, 200, {})

    async def close(self) -> None:
        for sandbox in list(self.sandboxes.values()):
            await self._end(sandbox)
        await self.hutch.close()


@contextlib.contextmanager
def serving() -> Iterator[tuple[str, Server]]:
    """The server in a thread of its own, as another machine would be."""
    listener = socket.create_server(("127.0.0.1", 0))
    ready, loops, made = threading.Event(), [], []

    async def main() -> None:
        app = Server()
        async with app.hutch:
            web = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_keep_alive=600, lifespan="off"))
            loops.append(asyncio.get_running_loop())
            made.extend((app, web))
            watching = asyncio.create_task(app._watch())
            ready.set()
            await web.serve(sockets=[listener])
            watching.cancel()
            await app.close()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    ready.wait(20)
    app, web = made
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", app
    finally:
        web.should_exit = True
        web.force_exit = True
        thread.join(30)


async def _stream(job: Any, send: Any) -> None:
    async for stream, data in job.follow():
        await _event(send, {"data": {stream: base64.b64encode(data).decode()}})
    result = await job.wait()
    code = result.exit_code if result.exit_code is not None else -1
    failed = {"error": f"exit status {code}"} if code else {}
    await _event(send, {"end": {"exitCode": code, "exited": True, "status": f"exit status {code}", **failed}})
    await _frame(send, 2, {})


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def _user(headers: dict[str, str]) -> str:
    given = headers.get("authorization", "")
    return base64.b64decode(given.partition(" ")[2]).decode().rstrip(":") if given.startswith("Basic ") else "user"


async def _body(receive: Any) -> bytes:
    """All of it, before anything is answered."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b"".join(parts)
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _reply(send: Any, status: int, body: Any) -> None:
    content = b"" if body is None else json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode()),
               (b"should-retry", b"false")]  # fmt: skip
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


async def _event(send: Any, event: dict[str, Any]) -> None:
    await _frame(send, 0, {"event": event})


async def _frame(send: Any, flag: int, content: dict[str, Any]) -> None:
    data = json.dumps(content).encode()
    await send({"type": "http.response.body", "body": bytes([flag]) + len(data).to_bytes(4, "big") + data,
                "more_body": True})  # fmt: skip
