"""Keeps one server running: starts it on demand, watches it, and restarts it up to three times before giving up.

Callers wait in `ready` until the server answers or has finally failed. Requests of many clients share one session,
which distinguishes their answers and progress by its own ids.
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
from hutch.mcp.hosting.boxes import ServerBoxes
from hutch.mcp.hosting.json_lines import OutputPreview
from hutch.mcp.hosting.questions import RequestsInFlight
from hutch.mcp.hosting.receipts import record_call
from hutch.mcp.hosting.registry import Entry
from hutch.mcp.hosting.start import Callbacks, Run, RunStarter, exit_failure
from hutch.model.mcp import McpFailure, McpServer, McpServerInfo, Phase, ServerState, Transport
from hutch.model.results import Cause
from hutch.policy.mcp_servers import offers
from mcp import MCPError

T = TypeVar("T", bound=BaseModel)

HEALTHY_SECONDS = 60.0
"""After answering for this long a server counts as healthy, and its next failure as the first."""
PING_SECONDS = 10.0
PINGS_MISSED = 3
FAILED_SECONDS = 30.0
"""For this long after a final failure callers get the error. Later calls start the server again."""


class Supervisor:
    """One server, in its own box or in that of a conversation."""

    def __init__(
        self, name: str, entry: Entry, boxes: ServerBoxes, settings: McpTable,
        on_change: Callable[[str], Awaitable[None]],
        on_notification: Callable[[str, ServerNotification], Awaitable[None]], box: Box | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.entry = entry
        self.preview = OutputPreview()
        self.tools: int | None = None
        self.initialize_result: InitializeResult | None = None
        """The server's answer to `initialize` at its last start."""
        self.in_flight = RequestsInFlight()
        self._settings = settings
        self._receipts = boxes.receipts
        self._on_change = on_change
        """Awaited when the server is ready, since its tools may have changed."""
        self._on_notification = on_notification
        """Awaited for notifications that belong to no request."""
        self._task: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        """Set while the server is ready or has failed. `ready` waits for it."""
        self._run: Run | None = None
        self._open_requests = 0
        """Number of running requests."""
        self._state = ServerState.DISABLED if entry.server.disabled else ServerState.STOPPED
        self._phase: Phase | None = None
        self._box_and_job = ("", "")
        self._since = time.time()
        self._retries = 0
        self._starts = 0
        self._error: McpFailure | None = None
        self._files: dict[str, str] = {}
        in_flight = self.in_flight
        callbacks = Callbacks(sampling=in_flight.sample, elicitation=in_flight.elicit, message=self._handle_message)
        self._starter = RunStarter(name, entry, boxes, settings, self.preview, callbacks, self._set_phase, box)

    # --- using --------------------------------------------------------------------------------------------------

    async def ready(self) -> Run:
        """Return a running server, and start it if necessary.

        Raises:
            ServerFailed: The server is disabled, or its last attempt failed.
        """
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
        raise self._unavailable_error()

    async def request(
        self, request: Request[Any, Any], kind: type[T] | TypeAdapter[T], progress: ProgressFnT | None = None
    ) -> T:
        """Send one request of any client.

        If the server ends meanwhile, the request fails and is not repeated, because nobody knows how far it came.
        """
        run = await self.ready()
        self._open_requests += 1
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
            self._open_requests -= 1

    async def call_tool(
        self, params: CallToolRequestParams, progress: ProgressFnT | None = None
    ) -> CallToolResult:  # fmt: skip
        """Call a tool and write a receipt.

        Raises:
            NotFound: The server's definition does not offer the tool.
        """
        async with record_call(self._receipts, self.name, params.name) as record:
            record.box = self._box_and_job[0]
            if not offers(self.entry.server, params.name):
                raise NotFound(f"MCP server {self.name} has no tool {params.name}")
            run = await self.ready()
            record.box = run.box.id if run.box is not None else ""
            result = await self.request(CallToolRequest(params=params), CallToolResult, progress)
            record.answered(result)
            return result

    async def _lost(self, run: Run) -> ServerFailed:
        if run.ended is not None:
            await asyncio.wait({run.ended}, timeout=PING_SECONDS)
            if run.ended.done() and not run.ended.cancelled():
                return self._with_server_name(exit_failure(run.ended, Phase.TOOL_CALL, self.preview))
        why = f": {run.streams.end_reason.message}" if run.streams is not None and run.streams.end_reason else ""
        return self._with_server_name(
            ServerFailed(f"its connection ended while it worked on this{why}", details={"phase": Phase.TOOL_CALL})
        )

    def info(self) -> McpServerInfo:
        server = self.entry.server
        box, job = self._box_and_job
        return McpServerInfo(
            name=self.name, transport=server.transport, state=self._state, phase=self._phase,
            boxed=server.transport is Transport.STDIO, box=box, job=job, retries=self._retries, starts=self._starts,
            since=self._since, error=self._error, start=server.start, share=server.share,
            command=shown_command(server) if server.command else (),
            url=redact(remote.public_address(server.url)) if server.url else "", env=tuple(server.env),
            secret_files=tuple(server.secret_files), files=self._files,
            tools=self.tools, origin=self.entry.origin, description=server.description,
        )  # fmt: skip

    # --- lifecycle -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the server unless it is running or starting."""
        if self._task is None or self._task.done():
            self._settled.clear()
            self._retries = 0
            self._set_state(ServerState.STARTING)
            self._task = asyncio.create_task(self._run_forever(), name=f"mcp-server {self.name}")

    async def stop(self) -> None:
        """End the process and its box. Return when both are gone."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        if not self.entry.server.disabled:
            self._set_state(ServerState.STOPPED)
        self._phase, self._box_and_job = None, ("", "")

    async def _run_forever(self) -> None:
        pauses = self._settings.retry_pauses_sec
        try:
            while True:
                begun = time.monotonic()
                self._set_state(ServerState.STARTING)
                try:
                    await self._run_once()
                except ServerFailed as error:
                    failure = error
                except Exception as error:  # The boundary of this task: a defect of ours must not end it silently.
                    log("mcp").error("defect", server=self.name, error=error)
                    failure = ServerFailed(f"internal error: {error}", details={"phase": self._phase})
                if self._run is not None and time.monotonic() - begun > HEALTHY_SECONDS:
                    self._retries = 0
                self._run = None
                self._record_failure(failure)
                if not failure.retryable or self._retries >= len(pauses):
                    self._set_state(ServerState.FAILED)
                    self._settled.set()
                    return
                self._settled.clear()
                pause = pauses[self._retries]
                self._retries += 1
                self._set_state(ServerState.WAITING)
                log("mcp").warning("server failed, tried again", server=self.name, seconds=pause, error=failure.message)
                await asyncio.sleep(pause)
        finally:
            self._run = None
            self._settled.set()

    async def _run_once(self) -> None:
        """Run the server until it ends, which always raises ServerFailed."""
        self._starts += 1
        async with self._starter.run() as run:
            self.initialize_result = run.session.initialize_result
            self._files = run.files
            self._run = run
            self._error = None
            self._set_state(ServerState.READY)
            self._settled.set()
            log("mcp").info("server ready", server=self.name, box=run.box.id if run.box else "", starts=self._starts)
            announcing = asyncio.ensure_future(self._on_change(self.name))
            try:
                await self._watch(run)
            finally:
                # New callers wait for the next run. Requests in flight fail through their session.
                self._settled.clear()
                announcing.cancel()

    async def _watch(self, run: Run) -> None:
        """Watch the server until it ends or no longer answers."""
        missed = 0
        while True:
            if run.ended is None:
                await asyncio.sleep(self._settings.health_sec)
            else:
                await asyncio.wait({run.ended}, timeout=self._settings.health_sec)
                if run.ended.done():
                    raise exit_failure(run.ended, Phase.RUNTIME, self.preview)
            if run.streams is not None and run.streams.end_reason is not None:
                raise ServerFailed(run.streams.end_reason.message, details={"phase": Phase.RUNTIME})
            # Many servers handle one request at a time, so silence during a request says nothing.
            if self._open_requests:
                continue
            missed = 0 if await self._ping(run) else missed + 1
            if missed >= PINGS_MISSED:
                raise ServerFailed(
                    f"it did not answer {missed} times when asked whether it is there",
                    details={"phase": Phase.RUNTIME},
                )

    async def _ping(self, run: Run) -> bool:
        try:
            async with asyncio.timeout(PING_SECONDS):
                await run.session.send_ping()
        except TimeoutError:
            return False
        except MCPError as error:  # A server that does not know ping has answered too.
            return error.error.code not in (CONNECTION_CLOSED, REQUEST_TIMEOUT)
        return True

    async def _handle_message(self, message: ServerNotification | Exception) -> None:
        if isinstance(message, Exception):
            log("mcp").info("a message of a server is not understood", server=self.name, error=message)
        else:
            await self._on_notification(self.name, message)

    # --- state and errors -------------------------------------------------------------------------------------------

    def _set_phase(self, phase: Phase, box: str, job: str) -> None:
        self._phase, self._box_and_job = phase, (box, job)

    def _set_state(self, state: ServerState) -> None:
        if state is not self._state:
            self._state, self._since = state, time.time()

    def _record_failure(self, error: ServerFailed) -> None:
        phase = Phase(str(error.details.get("phase") or self._phase or Phase.RUNTIME))
        self._phase, self._box_and_job = phase, ("", "")
        self._error = McpFailure(
            phase=phase, code=str(error.details.get("cause") or error.code), message=redact(error.message),
            remedy=error.remedy, at=time.time(),
        )  # fmt: skip

    def _with_server_name(self, error: ServerFailed) -> ServerFailed:
        details = {**error.details, "server": self.name}
        return ServerFailed(
            redact(f"MCP server {self.name}: {error.message}"), remedy=error.remedy, retryable=error.retryable,
            details=details,
        )  # fmt: skip

    def _unavailable_error(self) -> HutchError:
        """Return the error for callers while the server is not running."""
        failure = self._error
        if failure is None:
            return ServerFailed(f"MCP server {self.name} was stopped", details={"server": self.name})
        return ServerFailed(
            f"MCP server {self.name} failed in phase {failure.phase}: {failure.message}", remedy=failure.remedy,
            details={"server": self.name, **msgspec.to_builtins(failure)},
        )  # fmt: skip


def shown_command(server: McpServer) -> tuple[str, ...]:
    """Return the command with secrets hidden. A value counts as secret if its option is named like one."""
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
