"""What both doors of AstrBot share: routes below a prefix, callers with a bearer key, paths, uploads, sent answers."""

import asyncio
import math
import posixpath
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from hutch.errors import FileTooLarge, HeldElsewhere, HutchError, Invalid, NotFound
from hutch.keeper.access.callers import called_by
from hutch.keeper.access.handles import BoxHandle
from hutch.logs import current_operation, log
from hutch.model.files import FileInfo
from hutch.model.record import encode_json
from hutch.providers.guest_client.allowance import allowed
from hutch.server.auth import UNIX, Authenticator
from hutch.server.handlers.receipts import who_of
from hutch.server.multipart import parts_of
from hutch.server.peers import Peers
from hutch.server.request import ANONYMOUS, Call, Message, Receive, Reply, Scope, Send
from hutch.server.routes import May, check_role, match_path
from hutch.server.service import Service
from hutch.server.wire import PIECE_BYTES

WORKSPACE = "/workspace"
"""The directory to which the paths of AstrBot's SDKs are relative."""
MAX_FIELD_BYTES = 16 << 10
MAX_SHOWN_BYTES = 4 << 20
"""Most bytes of a file that is read as text; a larger one is downloaded."""

Handler = Callable[..., Awaitable[Reply]]


@dataclass(frozen=True)
class Route:
    """One method and path below the door's prefix; `body` and `query` are what its handler gets besides the call."""

    method: str
    path: str
    handler: Handler
    body: Any = None
    query: type | None = None
    uploads: bool = False
    """Whether the handler reads the body itself, as it arrives."""
    anonymous: bool = False


class HttpDoor:
    """A door for plain HTTP. A subclass says how its protocol renders an error."""

    name: str
    prefix: str

    def __init__(self, service: Service, auth: Authenticator, routes: Sequence[Route]) -> None:
        self.service = service
        self._auth = auth
        self._peers = Peers(service, auth)
        self._routes = [(route, tuple(route.path.strip("/").split("/"))) for route in routes]

    def claims(self, scope: Scope) -> bool:
        """Claim the prefix on TCP: the SDKs cannot name a Unix socket, and one door holds the protocol's state."""
        path: str = scope["path"]
        here = path == self.prefix or path.startswith(f"{self.prefix}/")
        return scope["type"] == "http" and here and scope["client"] is not None and scope["client"][0] != UNIX

    async def prepare(self) -> None:
        """Called before each authenticated request."""

    async def start(self) -> None:
        return None

    async def drain(self, seconds: float) -> None:
        return None

    def render(self, error: HutchError) -> Reply:
        """Return the answer that tells the protocol's client of an error."""
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        received = self._peers.recorded(receive)
        call = Call(self.service, ANONYMOUS, scope, received, {})
        call.op = self.name
        started = False

        async def starting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            try:
                await self._serve(call, scope, starting)
            except HeldElsewhere as elsewhere:
                await self._peers.pass_on(elsewhere, scope, received, starting)
        except HutchError as error:
            reply = self._refused(call, error)
            if not started:  # A stream that failed is cut, so that nobody takes it for complete.
                await send_reply(send, call, reply)
        finally:
            if call.account is not None:
                call.account.close()

    async def _serve(self, call: Call, scope: Scope, send: Send) -> None:
        route, call.params = self._find(scope)
        if route is not None:
            call.op = f"{self.name} {route.method} {route.path}"
        self._auth.check_origin(call.headers, scope["scheme"])
        if route is not None and route.anonymous:
            self._auth.count_anonymous(scope["client"])
            await send_reply(send, call, await route.handler(call))
            return
        given = {name: value for name, value in call.headers.items() if name in ("authorization", "hutch-key")}
        call.caller = await self._auth.authenticate({**given, "hutch-session": self.name}, scope["client"])
        check_role(May.CHANGE, call.caller, call.op)
        account = call.admit(scope)
        if route is None:  # Only authenticated callers learn which paths exist.
            raise NotFound(f"there is no {scope['method'][:20]} {scope['path'][:200]}")
        await self.prepare()
        with called_by(who_of(call.caller, current_operation()), call.caller.rights), allowed(account):
            await send_reply(send, call, await self._answer(call, route))

    async def _answer(self, call: Call, route: Route) -> Reply:
        arguments: dict[str, Any] = {}
        if route.query is not None:
            arguments["query"] = call.query(route.query)
        if route.uploads:
            return await route.handler(call, **arguments)
        if route.body is not None:
            arguments["body"] = await call.body(route.body)
        else:
            await call.whole_body()
        return await call.until_disconnect(_run(route.handler, call, arguments))

    def _find(self, scope: Scope) -> tuple[Route | None, dict[str, str]]:
        parts = scope["path"].removeprefix(self.prefix).strip("/").split("/")
        for route, pattern in self._routes:
            if route.method == scope["method"] and len(pattern) == len(parts):
                params = match_path(pattern, parts)
                if params is not None:
                    return route, params
        return None, {}

    def _refused(self, call: Call, error: HutchError) -> Reply:
        reply = self.render(error)
        self.service.record_failure(
            error, status=reply.status, op=call.op, request=current_operation(), box="", owner=call.caller.owner
        )
        report = log("server").warning if reply.status >= 500 else log("server").info
        report("refused", operation=call.op, status=reply.status, code=error.code, why=error.message)
        if error.retry_after is not None:
            reply.headers["retry-after"] = str(math.ceil(error.retry_after))
        return reply


async def _run(handler: Handler, call: Call, arguments: Mapping[str, Any]) -> Reply:
    return await handler(call, **arguments)


async def send_reply(send: Send, call: Call, reply: Reply) -> None:
    """Send an answer: JSON or bytes at once, or a stream whose first piece is awaited before the status."""
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff", **reply.headers}
    if request_id := call.header("x-request-id"):
        headers["x-request-id"] = request_id[:128]
    if reply.status != 204:
        headers["content-type"] = reply.type
    if isinstance(reply.body, AsyncGenerator):
        async with aclosing(reply.body) as pieces:
            first = await anext(pieces, b"")
            await _start(send, reply.status, headers)
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return
    data = reply.body if isinstance(reply.body, bytes) else b"" if reply.body is None else encode_json(reply.body)
    if len(data) > PIECE_BYTES and call.account is not None:
        call.account.take(len(data))
    if reply.status != 204:
        headers["content-length"] = str(len(data))
    await _start(send, reply.status, headers)
    await send({"type": "http.response.body", "body": data})


async def _start(send: Send, status: int, headers: Mapping[str, str]) -> None:
    listed = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": listed})


async def read_whole(box: BoxHandle, place: str) -> bytes:
    """Read a file that is shown as text in JSON, which can take six times as much."""
    data = await box.files.read(place, limit=MAX_SHOWN_BYTES + 1)
    if len(data) > MAX_SHOWN_BYTES:
        raise FileTooLarge(
            f"the file has more than the {MAX_SHOWN_BYTES >> 20} MB that are shown as text", op="read",
            remedy="download it",
        )  # fmt: skip
    return data


async def receive_upload(
    call: Call, box: BoxHandle, path_field: str, resolve: Callable[[str], str]
) -> tuple[str, str, FileInfo]:
    """Write the file of a form to the path that another field names, whichever of the two comes first.

    Returns the path as it was given, its place in the box, and what was written.
    """
    given, written, moved = "", None, False
    waiting = f"/workspace/.upload-{secrets.token_hex(8)}"
    pieces = call.pieces(call.service.config.server.max_upload_mb << 20)
    try:
        async with aclosing(parts_of(call.header("content-type"), pieces)) as parts:
            async for part in parts:
                if part.name == path_field:
                    given = await _read_field(part.content)
                    resolve(given)
                elif part.name == "file":
                    moved = not given
                    written = await box.files.write(resolve(given) if given else waiting, part.content)
        if written is None:
            raise Invalid("the form has no file")
        place = resolve(given)
        if moved:
            await box.files.mkdir(place.rpartition("/")[0])
            await box.files.move(waiting, place, overwrite=True)
            moved = False
        return given, place, written
    finally:
        if moved:
            await asyncio.shield(box.files.remove(waiting, missing_ok=True))


async def _read_field(content: Any) -> str:
    data = b""
    async for piece in content:
        data += piece
        if len(data) > MAX_FIELD_BYTES:
            raise Invalid(f"a field of the form has more than {MAX_FIELD_BYTES} bytes")
    return data.decode("utf-8", "surrogateescape")


class InvalidPath(Invalid):
    """A path that cannot be a file of the workspace; `reason` is the Bay API's word for why."""

    code = "invalid_path"

    def __init__(self, path: str, reason: str, text: str) -> None:
        super().__init__(f"path {path[:200]!r} {text}", details={"field": "path", "reason": reason})
        self.reason = reason


def workspace_path(path: str) -> str:
    """Return the place of a path in the box; an absolute path below /workspace is accepted too."""
    if not path:
        raise InvalidPath(path, "empty_path", "is empty")
    if "\0" in path:
        raise InvalidPath(path, "null_byte", "has a null byte")
    plain = posixpath.normpath(posixpath.join(WORKSPACE, path))
    if plain == WORKSPACE or plain.startswith(f"{WORKSPACE}/"):
        return plain
    if path.startswith("/"):
        raise InvalidPath(path, "absolute_path", "is absolute: name it relative to the workspace")
    raise InvalidPath(path, "path_traversal", "leads out of the workspace")
