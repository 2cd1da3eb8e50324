"""WebSockets: a terminal in a box, a connection to a port, a line-based relay to a job, and hosted MCP servers."""

import asyncio
import signal
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, get_type_hints

import msgspec

from hutch import telemetry
from hutch.errors import FileTooLarge, HutchError, Invalid, NotFound, Timeout
from hutch.keeper.access.callers import called_by
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.access.jobs import JobHandle
from hutch.keeper.access.ports import BoxStream
from hutch.keeper.locks import run_uncancelled
from hutch.logs import current_operation, log, redact
from hutch.model.record import Record
from hutch.providers.guest_client.allowance import allowed
from hutch.server.access import job_of, using
from hutch.server.auth import Authenticator, act_over_all
from hutch.server.error_status import error_to_wire, status_of
from hutch.server.handlers.box.jobs import Size
from hutch.server.handlers.box.ports import port_of
from hutch.server.handlers.receipts import who_of
from hutch.server.request import ANONYMOUS, JSON, Call, Receive, Scope, Send
from hutch.server.routes import May, check_role, match_path
from hutch.server.service import Service

MAX_LINE_BYTES = 4 << 20
HANG_UP_SECONDS = 2.0
END_FRAME = "end"
NORMAL, REFUSED, INTERNAL, RESTART = 1000, 1008, 1011, 1012
"""Close codes of RFC 6455."""


class TerminalQuery(Record, frozen=True, kw_only=True):
    command: str = "exec $(command -v bash || echo sh) -i"
    user: str | None = None
    cwd: str | None = None
    rows: Size = 24
    cols: Size = 80
    admin: bool = False
    """An admin acts without owner and lease, as with `Hutch-Admin: yes`, which browsers cannot send here."""


class Resize(Record, frozen=True, kw_only=True):
    """A text frame that resizes a terminal."""

    rows: Size
    cols: Size


class RelayQuery(Record, frozen=True, kw_only=True):
    cursor: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The position in the job's output to begin at; a client that reconnects passes how much it has read."""


class NoQuery(Record, frozen=True, kw_only=True):
    """A WebSocket without query parameters."""


class Socket:
    """One WebSocket."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.accepted = False

    async def accept(self, subprotocol: str = "") -> None:
        await self._receive()  # websocket.connect
        await self._send({"type": "websocket.accept", "subprotocol": subprotocol or None})
        self.accepted = True

    async def next(self) -> bytes | str | None:
        """The next frame; None if the client has disconnected."""
        message = await self._receive()
        if message["type"] != "websocket.receive":
            return None
        data: bytes | None = message.get("bytes")
        text: str = message.get("text") or ""
        return data if data is not None else text

    async def send(self, data: bytes | str) -> None:
        await self._send({"type": "websocket.send", "bytes" if isinstance(data, bytes) else "text": data})

    async def close(self, code: int, reason: str = "") -> None:
        # A close frame holds 123 bytes of reason.
        short = reason.encode()[:120].decode(errors="ignore")
        await self._send({"type": "websocket.close", "code": code, "reason": short})

    async def refuse(self, status: int, body: bytes, kind: str = JSON) -> None:
        """Answer with an HTTP error instead of accepting the WebSocket."""
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await self._send({"type": "websocket.http.response.start", "status": status, "headers": headers})
        await self._send({"type": "websocket.http.response.body", "body": body})


SocketHandler = Callable[..., Awaitable[None]]


@dataclass(frozen=True)
class SocketRoute:
    """The handler of a WebSocket at one path; its signature says which query it takes."""

    handler: SocketHandler
    needs_box: bool = True
    """Whether the handler works on a box, whose lease it needs."""
    query: type = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "query", get_type_hints(self.handler)["query"])


class Sockets:
    """Serves WebSockets. A handler that works on a box can change it, so it needs the lease."""

    def __init__(self, service: Service, auth: Authenticator) -> None:
        self._service = service
        self._auth = auth

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = Socket(receive, send)
        call = Call(self._service, ANONYMOUS, scope, receive, {})
        try:
            route = await self._prepare(call, scope)
            query: Record = call.query(route.query)
            if isinstance(query, TerminalQuery) and query.admin:
                call.caller = act_over_all(call.caller)
            who, account = who_of(call.caller, current_operation()), call.admit(scope)
            with called_by(who, call.caller.rights), allowed(account), telemetry.request(call.headers) as span:
                telemetry.served(span, call.op, 101, current_operation())
                if not route.needs_box:
                    await route.handler(call, socket, query)
                else:
                    async with using(call) as box:
                        await route.handler(call, box, socket, query)
            self._count(call, 101)
        except HutchError as error:
            await self._fail(call, socket, error)
        except OSError:  # uvicorn's ClientDisconnected; there is nobody to answer.
            self._count(call, 101)
        except Exception as error:  # The boundary of a connection: the defect is reported, the server keeps running.
            log("server").error("defect", operation=call.op, error=error, trace=traceback.format_exc())
            await self._fail(call, socket, HutchError("internal error"))
        finally:
            if call.account is not None:
                call.account.close()

    def _count(self, call: Call, status: int) -> None:
        self._service.metrics.requests[call.op, status] += 1
        log("server").debug("served", operation=call.op, status=status, by=call.caller.key_id)

    async def _prepare(self, call: Call, scope: Scope) -> SocketRoute:
        self._auth.check_origin(call.headers, scope["scheme"])
        call.caller = await self._auth.authenticate(call.headers, scope["client"], scope)
        parts = scope["path"].strip("/").split("/")
        for path, route in SOCKETS.items():
            pattern = tuple(path.strip("/").split("/"))
            params = match_path(pattern, parts) if len(pattern) == len(parts) else None
            if params is not None:
                call.params, call.op = params, f"WS {path}"
                check_role(May.CHANGE, call.caller, call.op)
                return route
        raise NotFound(f"there is no WebSocket at {scope['path'][:200]}")

    async def _fail(self, call: Call, socket: Socket, error: HutchError) -> None:
        status = status_of(error.code)
        self._service.record_failure(
            error, status=status, op=call.op, request=current_operation(), box=call.params.get("box", ""),
            owner=call.caller.owner,
        )  # fmt: skip
        report = log("server").warning if status >= 500 else log("server").info
        report("refused", operation=call.op, status=status, code=error.code, why=error.message, by=call.caller.key_id)
        self._count(call, status)
        try:
            if socket.accepted:
                await socket.close(INTERNAL if status >= 500 else REFUSED, redact(error.message))
            else:
                await socket.refuse(status, msgspec.json.encode(error_to_wire(error, call.op)))
        except OSError:  # The client has disconnected meanwhile.
            return


async def terminal(call: Call, box: BoxHandle, socket: Socket, query: TerminalQuery) -> None:
    """Open a terminal. Binary frames carry its bytes both ways, a text frame `{"rows": …, "cols": …}` resizes it. The
    last text frame is `{"exit_code": …, "signal": …}`. Disconnecting hangs up the terminal."""
    job = await box.start(
        query.command, user=query.user, cwd=query.cwd, pty=True, rows=query.rows, cols=query.cols, name="terminal"
    )
    try:
        await socket.accept()
        if await run_until_first_ends(_send_output(job, socket), _write_input(job, socket)):
            result = await job.wait()
            await socket.send(msgspec.json.encode({"exit_code": result.exit_code, "signal": result.signal}).decode())
            await socket.close(NORMAL)
    finally:
        await run_uncancelled(_hang_up(box, job))


async def relay(call: Call, box: BoxHandle, socket: Socket, query: RelayQuery) -> None:
    """Relay a job's input and output, one text frame for each line; the job keeps running after a disconnect."""
    job = await job_of(call, box)
    await job.info()
    await socket.accept()
    if await run_until_first_ends(send_lines(job, socket, query.cursor), write_lines(job, socket)):
        result = await job.wait()
        await socket.close(NORMAL, f"ended: {result.verdict.cause}")


async def connect(call: Call, box: BoxHandle, socket: Socket, query: NoQuery) -> None:
    """Connect to a TCP port inside the box. Binary frames carry the bytes both ways; the text frame `end` says that
    this side sends no more, while the other may."""
    async with await box.connect(port_of(call)) as stream:
        await socket.accept()
        await _run_both(_send_stream(stream, socket), _write_stream(stream, socket))
        await socket.close(NORMAL)


async def hosted_lines(call: Call, socket: Socket, query: NoQuery) -> None:
    """Talk to a hosted MCP server, one text frame for each message; several clients may do so at once."""
    name = call.params["mcp_server"]
    hosted = await call.service.hostings.of(call.caller.owner)
    await hosted.ready(name)
    from hutch.mcp.hosting import frames  # The MCP SDK is an extra.

    await socket.accept()
    await frames.serve(hosted.endpoint(name).server, socket.next, socket.send)


SOCKETS = {
    "/mcp/servers/{mcp_server}/ws": SocketRoute(hosted_lines, needs_box=False),
    "/v1/boxes/{box}/terminal": SocketRoute(terminal),
    "/v1/boxes/{box}/jobs/{job}/ws": SocketRoute(relay),
    "/v1/boxes/{box}/ports/{port}/connect": SocketRoute(connect),
}


async def run_until_first_ends(output: Coroutine[Any, Any, None], input: Coroutine[Any, Any, None]) -> bool:
    """Run both until one ends; True if that was the output. The error of either is raised."""
    tasks = [asyncio.ensure_future(output), asyncio.ensure_future(input)]
    return tasks[0] in await _run_until(asyncio.FIRST_COMPLETED, tasks)


async def _run_both(*work: Coroutine[Any, Any, None]) -> None:
    """Run both to their ends. The first error of either ends the other."""
    await _run_until(asyncio.FIRST_EXCEPTION, [asyncio.ensure_future(each) for each in work])


async def _run_until(condition: str, tasks: "Sequence[asyncio.Task[None]]") -> "set[asyncio.Task[None]]":
    """Wait for the condition, end the other tasks, and return those that were done. Their errors are raised."""
    try:
        done, _ = await asyncio.wait(tasks, return_when=condition)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()
    return done


async def _send_output(job: JobHandle, socket: Socket) -> None:
    async for _, data in job.follow():
        await socket.send(data)


async def _write_input(job: JobHandle, socket: Socket) -> None:
    while (frame := await socket.next()) is not None:
        if isinstance(frame, bytes):
            await job.write(frame)
        else:
            size = Resize.from_json(frame)
            await job.resize(size.rows, size.cols)


async def send_lines(
    job: JobHandle, socket: Socket, cursor: int, sent: Callable[[int], None] = lambda position: None
) -> None:
    """Send each line of a job's output as one frame; `sent` is called with the position up to which whole lines were
    sent."""
    rest = bytearray()
    async for stream, data in job.follow(stdout=cursor):
        if stream != "stdout":
            continue
        rest += data
        *lines, last = rest.split(b"\n")
        for line in lines:
            await socket.send(line.decode("utf-8", "replace"))
            cursor += len(line) + 1
            sent(cursor)
        rest = last
        if len(rest) > MAX_LINE_BYTES:
            raise FileTooLarge(f"the job wrote a line of more than {MAX_LINE_BYTES >> 20} MB")
    if rest:
        await socket.send(rest.decode("utf-8", "replace"))


async def write_lines(job: JobHandle, socket: Socket) -> None:
    while (frame := await socket.next()) is not None:
        line = frame.encode() if isinstance(frame, str) else frame
        if b"\n" in line:
            raise Invalid("a frame is one line: it must not hold a line feed")
        await job.write(line + b"\n")


async def _send_stream(stream: BoxStream, socket: Socket) -> None:
    while data := await stream.receive():
        await socket.send(data)
    await socket.send(END_FRAME)


async def _write_stream(stream: BoxStream, socket: Socket) -> None:
    while (frame := await socket.next()) != END_FRAME:
        if frame is None:
            raise ConnectionAbortedError("the client has disconnected")
        if isinstance(frame, str):
            raise Invalid(f"a text frame may only be {END_FRAME!r}: bytes go in binary frames")
        await stream.send(frame)
    await stream.end()


async def _hang_up(box: BoxHandle, job: JobHandle) -> None:
    """End what still runs: SIGHUP as for a lost terminal, then SIGKILL."""
    instance = await box.begin()
    try:
        await job.signal(signal.SIGHUP)
        try:
            await job.wait(HANG_UP_SECONDS)
        except Timeout:
            await job.signal(signal.SIGKILL)
            await job.wait()
        await instance.forget(job.id)
    finally:
        box.end()
