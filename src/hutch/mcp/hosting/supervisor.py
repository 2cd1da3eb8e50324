"""Keeping one server running: started on demand, watched, started again after 2, 4 and 8 seconds, then given up.

Whoever wants to use it waits in `ready` until it answers or has failed for good (B36). Requests of many clients go
through one session, which tells their answers and progress apart by its own ids.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from mcp.shared.dispatcher import ProgressFnT
from mcp.types import (
    CONNECTION_CLOSED,
    REQUEST_TIMEOUT,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    InitializeResult,
    Request,
    ServerNotification,
)
from pydantic import BaseModel, TypeAdapter

from hutch.api import Box
from hutch.config.mcp import McpTable
from hutch.errors import HutchError, NotFound, ServerFailed
from hutch.logs import HIDDEN, log, redact, redact_field
from hutch.mcp.hosting import remote
from hutch.mcp.hosting.boxes import Boxes
from hutch.mcp.hosting.json_lines import Preview
from hutch.mcp.hosting.questions import Flying
from hutch.mcp.hosting.receipts import receipted
from hutch.mcp.hosting.registry import Entry
from hutch.mcp.hosting.start import Callbacks, Making, Run, ended_as
from hutch.model.mcp import McpFailure, McpServer, McpServerInfo, Phase, ServerState, Transport
from hutch.model.results import Cause
from hutch.policy.mcp_servers import offers
from mcp import MCPError

T = TypeVar("T", bound=BaseModel)

WELL_SECONDS = 60.0
"""A server that answered this long is well: its next failure is its first."""
PING_SECONDS = 10.0
PINGS_MISSED = 3
FAILED_SECONDS = 30.0
"""Whoever asks for a server that has just failed is told so; later, it is tried again."""


class Supervisor:
    """One server in one place."""

    def __init__(
        self, name: str, entry: Entry, boxes: Boxes, settings: McpTable, changed: Callable[[str], Awaitable[None]],
        heard: Callable[[str, ServerNotification], Awaitable[None]], box: Box | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.entry = entry
        self.preview = Preview()
        self.tools: int | None = None
        self.greeting: InitializeResult | None = None
        """What it said of itself when it last started."""
        self.flying = Flying()
        self._settings = settings
        self._notes = boxes.notes
        self._changed = changed
        """Told when it comes up: what it offers may be new."""
        self._heard = heard
        """Told what it says of itself, to nobody in particular."""
        self._task: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        """Set while it is ready or has failed; whoever waits, waits for this."""
        self._run: Run | None = None
        self._asked = 0
        """Requests that it works on."""
        self._state = ServerState.DISABLED if entry.server.disabled else ServerState.STOPPED
        self._phase: Phase | None = None
        self._where = ("", "")
        self._since = time.time()
        self._retries = 0
        self._starts = 0
        self._error: McpFailure | None = None
        self._files: dict[str, str] = {}
        flying = self.flying
        callbacks = Callbacks(sampling=flying.sample, elicitation=flying.elicit, message=self._message)
        self._making = Making(name, entry, boxes, settings, self.preview, callbacks, self._told, box)

    # --- using --------------------------------------------------------------------------------------------------

    async def ready(self) -> Run:
        """A run that answers; starts it if need be. ServerFailed once it has failed for the last time."""
        if self.entry.server.disabled:
            raise ServerFailed(
                f"MCP server {self.name} is disabled", retryable=False, remedy="enable it in its definition",
                details={"server": self.name, "state": ServerState.DISABLED},
            )  # fmt: skip
        recently = self._state is ServerState.FAILED and time.time() - self._since < FAILED_SECONDS
        if not recently:
            self.start()
        await self._settled.wait()
        if self._run is not None:
            return self._run
        raise self._failure()

    async def request(
        self, request: Request[Any, Any], kind: type[T] | TypeAdapter[T], progress: ProgressFnT | None = None
    ) -> T:
        """One request of any client. In flight when the server ends, it fails as what happened, and is not repeated:
        nobody knows how far it came."""
        run = await self.ready()
        self._asked += 1
        try:
            limit = self.entry.server.tool_timeout_sec or None
            return await run.session.send_request(
                request, kind, request_read_timeout_seconds=limit, progress_callback=progress
            )
        except MCPError as error:
            if error.error.code == CONNECTION_CLOSED:
                raise await self._lost(run) from error
            if error.error.code == REQUEST_TIMEOUT:
                raise ServerFailed(
                    f"MCP server {self.name} did not answer {request.method} within {limit:g} s",
                    remedy="raise tool_timeout_sec",
                    details={"server": self.name, "phase": Phase.TOOL_CALL, "cause": Cause.TIMEOUT},
                ) from error  # fmt: skip
            raise
        finally:
            self._asked -= 1

    async def call_tool(
        self, params: CallToolRequestParams, progress: ProgressFnT | None = None
    ) -> CallToolResult:  # fmt: skip
        """Call one of the tools that it offers; NotFound for any other. Each call leaves a receipt."""
        async with receipted(self._notes, self.name, params.name) as calling:
            calling.box = self._where[0]
            if not offers(self.entry.server, params.name):
                raise NotFound(f"MCP server {self.name} has no tool {params.name}")
            run = await self.ready()
            calling.box = run.box.id if run.box is not None else ""
            result = await self.request(CallToolRequest(params=params), CallToolResult, progress)
            calling.answered(result)
            return result

    async def _lost(self, run: Run) -> ServerFailed:
        if run.ended is not None:
            await asyncio.wait({run.ended}, timeout=PING_SECONDS)
            if run.ended.done() and not run.ended.cancelled():
                return self._named(ended_as(run.ended, Phase.TOOL_CALL, self.preview))
        why = f": {run.streams.overflow.message}" if run.streams is not None and run.streams.overflow else ""
        return self._named(
            ServerFailed(f"its connection ended while it worked on this{why}", details={"phase": Phase.TOOL_CALL})
        )

    def info(self) -> McpServerInfo:
        server = self.entry.server
        box, job = self._where
        return McpServerInfo(
            name=self.name, transport=server.transport, state=self._state, phase=self._phase,
            boxed=server.transport is Transport.STDIO, box=box, job=job, retries=self._retries, starts=self._starts,
            since=self._since, error=self._error, start=server.start, share=server.share,
            command=shown_command(server) if server.command else (),
            url=redact(remote.address(server.url)) if server.url else "", env=tuple(server.env),
            secret_files=tuple(server.secret_files), files=self._files,
            tools=self.tools, origin=self.entry.origin, description=server.description,
        )  # fmt: skip

    # --- its life -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to start it, unless it runs or is about to."""
        if self._task is None or self._task.done():
            self._settled.clear()
            self._retries = 0
            self._move(ServerState.STARTING)
            self._task = asyncio.create_task(self._keep(), name=f"mcp-server {self.name}")

    async def stop(self) -> None:
        """End its process and its box; returns when both are gone."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        if not self.entry.server.disabled:
            self._move(ServerState.STOPPED)
        self._phase, self._where = None, ("", "")

    async def _keep(self) -> None:
        pauses = self._settings.retry_pauses_sec
        try:
            while True:
                begun = time.monotonic()
                self._move(ServerState.STARTING)
                try:
                    await self._once()
                except ServerFailed as error:
                    failure = error
                except Exception as error:  # the boundary of a server's life: a defect of ours must not end it silently
                    log("mcp").error("defect", server=self.name, error=error)
                    failure = ServerFailed(f"internal error: {error}", details={"phase": self._phase})
                if self._run is not None and time.monotonic() - begun > WELL_SECONDS:
                    self._retries = 0
                self._run = None
                self._note(failure)
                if not failure.retryable or self._retries >= len(pauses):
                    self._move(ServerState.FAILED)
                    self._settled.set()
                    return
                self._settled.clear()
                pause = pauses[self._retries]
                self._retries += 1
                self._move(ServerState.WAITING)
                log("mcp").warning("server failed, tried again", server=self.name, seconds=pause, error=failure.message)
                await asyncio.sleep(pause)
        finally:
            self._run = None
            self._settled.set()

    async def _once(self) -> None:
        """From its start to its end, which is always a ServerFailed."""
        self._starts += 1
        async with self._making.run() as run:
            self.greeting = run.session.initialize_result
            self._files = run.files
            self._run = run
            self._error = None
            self._move(ServerState.READY)
            self._settled.set()
            log("mcp").info("server ready", server=self.name, box=run.box.id if run.box else "", starts=self._starts)
            announcing = asyncio.ensure_future(self._changed(self.name))
            try:
                await self._watch(run)
            finally:
                # Whoever waits from now on waits for the next run; requests in flight are told by their session.
                self._settled.clear()
                announcing.cancel()

    async def _watch(self, run: Run) -> None:
        """Until it ends or no longer answers (B28: looked at every 5 s)."""
        missed = 0
        while True:
            if run.ended is None:
                await asyncio.sleep(self._settings.health_sec)
            else:
                await asyncio.wait({run.ended}, timeout=self._settings.health_sec)
                if run.ended.done():
                    raise ended_as(run.ended, Phase.RUNTIME, self.preview)
            if run.streams is not None and run.streams.overflow is not None:
                raise ServerFailed(run.streams.overflow.message, details={"phase": Phase.RUNTIME})
            # Many servers do one thing at a time: while one is asked something, silence says nothing.
            if self._asked:
                continue
            missed = 0 if await self._answers(run) else missed + 1
            if missed >= PINGS_MISSED:
                raise ServerFailed(
                    f"it did not answer {missed} times when asked whether it is there",
                    details={"phase": Phase.RUNTIME},
                )

    async def _answers(self, run: Run) -> bool:
        try:
            async with asyncio.timeout(PING_SECONDS):
                await run.session.send_ping()
        except TimeoutError:
            return False
        except MCPError as error:  # one that knows no ping has answered too
            return error.error.code not in (CONNECTION_CLOSED, REQUEST_TIMEOUT)
        return True

    async def _message(self, message: ServerNotification | Exception) -> None:
        if isinstance(message, Exception):
            log("mcp").info("a message of a server is not understood", server=self.name, error=message)
        else:
            await self._heard(self.name, message)

    # --- what is told -------------------------------------------------------------------------------------------

    def _told(self, phase: Phase, box: str, job: str) -> None:
        self._phase, self._where = phase, (box, job)

    def _move(self, state: ServerState) -> None:
        if state is not self._state:
            self._state, self._since = state, time.time()

    def _note(self, error: ServerFailed) -> None:
        phase = Phase(str(error.details.get("phase") or self._phase or Phase.RUNTIME))
        self._phase, self._where = phase, ("", "")
        self._error = McpFailure(
            phase=phase, code=str(error.details.get("cause") or error.code), message=redact(error.message),
            remedy=error.remedy, at=time.time(),
        )  # fmt: skip

    def _named(self, error: ServerFailed) -> ServerFailed:
        details = {**error.details, "server": self.name}
        return ServerFailed(
            redact(f"MCP server {self.name}: {error.message}"), remedy=error.remedy, retryable=error.retryable,
            details=details,
        )  # fmt: skip

    def _failure(self) -> HutchError:
        """Why nobody can use it now."""
        told = self._error
        if told is None:
            return ServerFailed(f"MCP server {self.name} was stopped", details={"server": self.name})
        return ServerFailed(
            f"MCP server {self.name} failed in phase {told.phase}: {told.message}", remedy=told.remedy,
            details={"server": self.name, **msgspec.to_builtins(told)},
        )  # fmt: skip


def shown_command(server: McpServer) -> tuple[str, ...]:
    """As people may see it: what follows an option that is called like a secret is taken for one (lesson 37)."""
    shown: list[str] = []
    secret = False
    for word in (server.command, *server.args):
        option, sign, value = word.partition("=")
        if secret and not word.startswith("-"):
            shown.append(HIDDEN)
        elif sign and option.startswith("-"):
            shown.append(f"{option}={redact_field(option, redact(value))}")
        else:
            shown.append(redact(word))
        secret = word.startswith("-") and not sign and redact_field(word, "-") == HIDDEN
    return tuple(shown)
