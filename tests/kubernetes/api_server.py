"""An API server that answers from a script, for the faults that a real one cannot be made to show on demand."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
import yaml


class Script:
    """Answers by method and end of path. The last answer of a list is repeated; a number is a status without body."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], list[Any]] = {}
        self.asked: list[tuple[str, str]] = []
        self.asked_with_query: list[tuple[str, str, str]] = []
        """Method, path and query of each request, WebSockets among them."""

    def on(self, method: str, end: str, *answers: Any) -> None:
        self.answers[method, end] = list(answers)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":  # Refused with 403, as an ASGI server answers who closes before accepting.
            self.asked.append(("WEBSOCKET", scope["path"]))
            self.asked_with_query.append(("GET", scope["path"], scope["query_string"].decode()))
            await send({"type": "websocket.close"})
            return
        if scope["type"] != "http":
            return
        self.asked_with_query.append((scope["method"], scope["path"], scope["query_string"].decode()))
        watching = b"watch=true" in scope["query_string"]
        method = "WATCH" if watching else scope["method"]
        self.asked.append((method, scope["path"]))
        found = next((key for key in self.answers if key[0] == method and scope["path"].endswith(key[1])), None)
        answers = self.answers.get(found, [404]) if found else [404]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if watching:
            await self._watch(answer, send)
            return
        if isinstance(answer, int):
            answer = answer, failure(answer)
        await self._answer(send, *(answer if isinstance(answer, tuple) else (200, answer)))

    async def _watch(self, events: Any, send: Any) -> None:
        if isinstance(events, int):
            await self._answer(send, events, failure(events))
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        for event in events:
            if event == "silence":
                await asyncio.sleep(3600)
            line = json.dumps(event, ensure_ascii=False).encode() + b"\n"
            await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _answer(self, send: Any, status: int, body: Any) -> None:
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})


def failure(code: int, message: str = "as the script says", **more: Any) -> dict[str, Any]:
    """Return the Status object that the API answers errors with."""
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code, **more}


@asynccontextmanager
async def scripted(directory: Path) -> AsyncIterator[tuple[Script, Path]]:
    """Serve a script, and yield it with the kubeconfig that names it."""
    script = Script()
    script.on("GET", "/version", {"gitVersion": "v1.35.8"})
    server = uvicorn.Server(uvicorn.Config(script, host="127.0.0.1", port=0, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    path = directory / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "boxes"}}],
                "current-context": "c",
            }
        )
    )
    try:
        yield script, path
    finally:
        server.force_exit = server.should_exit = True
        await serving
