"""The code interpreter of a sandbox (port 49999): `/execute` and `/contexts`, on the kernels of its box."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

import msgspec

from hutch.errors import Invalid, NotFound, NotRunnable
from hutch.keeper.access.handles import BoxHandle
from hutch.model.code import CHART_MIME, TABLE_MIME, CodePiece, CodeResult, Display, KernelInfo
from hutch.model.record import encode_json
from hutch.model.results import Cause
from hutch.server.e2b.errors import Answer, NotRunning, status_of, text_of
from hutch.server.e2b.requests import Request
from hutch.server.e2b.streams import Cut
from hutch.server.request import Message, Send

KEEPALIVE_SECONDS = 5.0
LONGEST_SECONDS = 86400.0
"""Upper bound for one run. A client interrupts its code by disconnecting, but some never disconnect."""
_QUEUED = 64
_NAMES = {
    "text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg",
    "image/png": "png", "image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex",
    "application/json": "json", "application/javascript": "javascript", TABLE_MIME: "data", CHART_MIME: "chart",
}  # fmt: skip
"""The field of a result for each media type. Other media types go into the field `extra`."""
_DEFAULTS = ("python", "javascript")
"""Contexts that every sandbox lists from its start. Their kernels start when they are first used."""

_HEAD: Message = {
    "type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]
}  # fmt: skip

Line = dict[str, Any]
Lines = asyncio.Queue[tuple[Line, int] | BaseException | None]
"""Lines that wait to be sent, each with the bytes of memory that it is counted as."""
_END: Line = {"type": "end_of_execution"}
JSON_COST = 4
"""Bytes of memory that one byte of JSON takes once it is parsed."""


class ExecuteBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    code: str
    context_id: str | None = None
    language: str | None = None
    env_vars: dict[str, str] | None = None


class ContextBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    language: str | None = None
    cwd: str | None = None


async def serve(request: Request, send: Send) -> Answer | None:
    """Answer a request to the code interpreter. Its errors are plain text."""
    method, path = request.method, request.path.rstrip("/")
    try:
        if (method, path) == ("POST", "/execute"):
            await _execute(request, send)
            return None
        if (method, path) == ("GET", "/health"):
            await request.find_running()
            return _text("OK")
        if (method, path) == ("GET", "/contexts"):
            return await _list_contexts(request)
        if (method, path) == ("POST", "/contexts"):
            return await _create_context(request)
        name, _, action = path.removeprefix("/contexts/").partition("/")
        if path.startswith("/contexts/") and method == "POST" and action == "restart":
            async with request.using() as box:
                await _with_default(box, name)
                await box.kernels.restart(name)
            return _text("")
        if path.startswith("/contexts/") and method == "DELETE" and not action:
            async with request.using() as box:
                await _with_default(box, name)
                await box.kernels.remove(name)
            return _text("")
    except (NotFound, Invalid, NotRunnable) as error:
        return _text(text_of(error), status_of(error))
    return _text(f"{method} {path} is no call of the code interpreter", 404)


def _text(text: str, status: int = 200) -> Answer:
    return Answer(status, text.encode(), (("content-type", "text/plain; charset=utf-8"),))


# --- contexts -------------------------------------------------------------------------------------------------


async def _list_contexts(request: Request) -> Answer:
    async with request.using() as box:
        kernels = await box.kernels.all()
    known = {kernel.id for kernel in kernels}
    defaults = [{"id": name, "language": name, "cwd": "/home/user"} for name in _DEFAULTS if name not in known]
    return Answer(200, encode_json([*defaults, *map(_context, kernels)]), (("content-type", "application/json"),))


async def _create_context(request: Request) -> Answer:
    body = await request.body(ContextBody)
    async with request.using() as box:
        kernel = await box.kernels.start(body.language or "python", cwd=request.resolve(body.cwd or ""))
    return Answer(200, encode_json(_context(kernel)), (("content-type", "application/json"),))


async def _with_default(box: BoxHandle, name: str) -> None:
    """Start a default context that nobody has used yet, so that it can be restarted and removed like any other."""
    if name in _DEFAULTS and name not in {kernel.id for kernel in await box.kernels.all()}:
        await box.kernels.run(name, "")


def _context(kernel: KernelInfo) -> Line:
    return {"id": kernel.id, "language": str(kernel.language), "cwd": kernel.cwd or "/home/user"}


# --- running --------------------------------------------------------------------------------------------------


async def _execute(request: Request, send: Send) -> None:
    """Run code and stream what it prints and displays as lines of JSON. A client that disconnects interrupts it."""
    body = await request.body(ExecuteBody)
    if body.context_id and body.language:
        raise Invalid("Only one of context_id or language can be provided")
    await request.find_running()
    started = False

    async def starting(message: Message) -> None:
        nonlocal started
        started = True
        await send(message)

    try:
        await request.call.until_disconnect(
            request.sandboxes.streams.run(request.sandbox, _stream(request, body, starting))
        )
    except (Cut, NotRunning):
        # The sandbox ended meanwhile. The answer stays incomplete: clients then ask whether it still runs, and say
        # what became of it.
        if not started:
            await send(_HEAD)


async def _stream(request: Request, body: ExecuteBody, send: Send) -> None:
    """Send lines as they come. An error before the first of them gets a status of its own.

    A kernel may take longer to start than a client waits for a sign of life. If it then fails, a line says so.
    """
    queue: Lines = asyncio.Queue(_QUEUED)
    run = asyncio.ensure_future(_run(request, body, queue))
    try:
        line = await _next_line(request, queue)
        await send(_HEAD)
        try:
            while line is not None:
                await _send_line(send, line)
                line = await _next_line(request, queue)
        except NotRunnable as error:
            for line in (_error(error.code, text_of(error), text_of(error)), _END):
                await _send_line(send, line)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        run.cancel()
        await asyncio.wait({run})


async def _send_line(send: Send, line: Line) -> None:
    await send({"type": "http.response.body", "body": encode_json(line) + b"\n", "more_body": True})


async def _next_line(request: Request, queue: Lines) -> Line | None:
    """Return the next line, a keepalive after a silence, or None at the end."""
    try:
        async with asyncio.timeout(KEEPALIVE_SECONDS):
            found = await request.call.service.unless_draining(queue.get())
    except TimeoutError:
        return {"type": "keepalive"}
    if isinstance(found, BaseException):
        raise found
    if found is None:
        return None
    line, size = found
    request.account.give(size)
    return line


async def _run(request: Request, body: ExecuteBody, queue: Lines) -> None:
    try:
        async with request.using() as box:
            await request.sandboxes.sudo.ensure(box)
            async with aclosing(_lines(box, body)) as lines:
                async for line, size in lines:
                    request.account.take(size)  # Given back when it is taken from the queue.
                    await queue.put((line, size))
        await queue.put(None)
    except Exception as error:  # The boundary of the task: whoever reads the queue reports it.
        await queue.put(error)


async def _lines(box: BoxHandle, body: ExecuteBody) -> AsyncGenerator[tuple[Line, int], None]:
    kernel = body.context_id or ""
    if kernel in _DEFAULTS:
        await _with_default(box, kernel)
    language = "" if kernel else body.language or "python"
    pieces = box.kernels.stream(language, body.code, timeout=LONGEST_SECONDS, env=body.env_vars or {}, kernel=kernel)
    async with aclosing(pieces):
        async for piece in pieces:
            for line in _lines_of(piece):
                yield line, _size(piece)


def _lines_of(piece: CodePiece) -> list[Line]:
    if piece.stream:
        return [{"type": piece.stream, "text": piece.text, "timestamp": time.time_ns()}]
    if piece.display is not None:
        return [_shown(piece.display)]
    if piece.error is not None:
        return [_error(piece.error.name, piece.error.value, piece.error.traceback)]
    return [] if piece.result is None else _end(piece.result)


def _error(name: str, value: str, traceback: str) -> Line:
    return {"type": "error", "name": name, "value": value, "traceback": traceback}


def _end(result: CodeResult) -> list[Line]:
    lines: list[Line] = []
    if result.error is None and result.verdict.cause not in (Cause.OK, Cause.EXIT):
        message = result.verdict.message
        lines.append(_error(str(result.verdict.cause), message, message))
    lines.append({"type": "number_of_executions", "execution_count": result.count})
    lines.append(_END)
    return lines


def _shown(display: Display) -> Line:
    line: Line = {"type": "result", "is_main_result": display.main}
    extra: Line = {}
    for mime, value in display.data.items():
        decoded: object = value
        if mime.endswith("json"):
            with suppress(msgspec.DecodeError, RecursionError):  # The code may call anything JSON; else it is text.
                decoded = msgspec.json.decode(value)
        name = _NAMES.get(mime)
        if name is None:
            extra[mime] = decoded
        elif name == "data" and isinstance(decoded, dict):
            line[name] = decoded.get("columns", decoded)
        elif name == "text":
            line[name] = _unquoted(value)
        else:
            line[name] = decoded
    return line | {"extra": extra} if extra else line


def _size(piece: CodePiece) -> int:
    if piece.display is None:
        return len(piece.text)
    return sum(len(value) * (JSON_COST if mime.endswith("json") else 1) for mime, value in piece.display.data.items())


def _unquoted(text: str) -> str:
    """Return a string's own text instead of its repr, as clients of E2B expect the value of an expression."""
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'" else text
