"""Starts a server phase by phase, from its box to a session that has answered `initialize`.

Each phase has its own time limit and its own error. Whatever happens, the results of earlier phases are cleaned up.
"""

import asyncio
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from mcp.client.session import ElicitationFnT, MessageHandlerFnT, SamplingFnT
from mcp.types import Implementation

import hutch
from hutch.api import Box, Job
from hutch.config.mcp import McpTable
from hutch.errors import HutchError, NotRunnable, ServerFailed
from hutch.logs import log
from hutch.mcp.hosting import projects, remote
from hutch.mcp.hosting.boxes import ServerBoxes
from hutch.mcp.hosting.dependencies import Installer
from hutch.mcp.hosting.json_lines import LineStreams, OutputPreview
from hutch.mcp.hosting.registry import Entry
from hutch.model.mcp import SECRETS_AT, Phase, Transport
from hutch.model.results import Cause, Result, Verdict
from hutch.model.spec import NetworkMode
from hutch.policy.rights import UNBOUND, bound_by
from mcp import ClientSession, MCPError

T = TypeVar("T")

CREATE_SECONDS = 60.0
START_SECONDS = 30.0
END_SECONDS = 2.0
"""Time for a server to end after its input has closed, and again after SIGTERM."""


@dataclass(frozen=True)
class Callbacks:
    """Answer a server's questions to its client. Roots are not offered: a client's paths mean nothing in the box."""

    sampling: SamplingFnT
    elicitation: ElicitationFnT
    message: MessageHandlerFnT


@dataclass
class Run:
    """A running server that has answered `initialize`."""

    session: ClientSession
    box: Box | None
    job: Job | None
    files: dict[str, str]
    ended: "asyncio.Task[Result] | None"
    """Done when the process has exited. A closed stream alone is no exit."""
    streams: LineStreams | None


@dataclass
class RunStarter:
    """Starts runs of one server, and reports their phases."""

    name: str
    entry: Entry
    boxes: ServerBoxes
    settings: McpTable
    preview: OutputPreview
    callbacks: Callbacks
    on_phase: Callable[[Phase, str, str], None]
    """Called with the phase, the box and the job when a phase begins."""
    box: Box | None = None
    """The conversation's box, if the server shares it."""
    phase: Phase = Phase.SESSION_CREATE

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Run]:
        """Run the server.

        Raises:
            ServerFailed: A phase failed. The error names it.
        """
        if self.entry.server.transport is Transport.STDIO:
            async with self._with_cleanup(self._start_in_box) as run:
                yield run
            return
        try:
            async with self._with_cleanup(self._start_remote) as run:
                yield run
        except remote.TRANSPORT_ERRORS as error:
            if isinstance(error, HutchError):
                raise
            raise ServerFailed(
                f"{remote.public_address(self.entry.server.url)} cannot be reached: {remote.error_reason(error)}",
                remedy="check its url and headers", details={"phase": self.phase},
            ) from error  # fmt: skip

    @asynccontextmanager
    async def _with_cleanup(self, make: Callable[[AsyncExitStack], Awaitable[Run]]) -> AsyncIterator[Run]:
        failure: ServerFailed | None = None
        async with AsyncExitStack() as stack:
            # The error bypasses the stack, because the SDK's task groups in it would wrap it in exception groups.
            try:
                run = await make(stack)
                self._enter_phase(Phase.RUNTIME, run.box.id if run.box else "", run.job.id if run.job else "")
                yield run
            except ServerFailed as error:
                failure = error
        if failure is not None:
            raise failure

    def _enter_phase(self, phase: Phase, box: str = "", job: str = "") -> None:
        self.phase = phase
        self.on_phase(phase, box, job)

    async def _start_in_box(self, stack: AsyncExitStack) -> Run:
        # The box has the rights of the caller who registered the server. What runs in it is no command of the caller
        # whose request happened to begin this task: that caller's timeouts do not end the server.
        with bound_by(UNBOUND):
            return await self._begun(stack)

    async def _begun(self, stack: AsyncExitStack) -> Run:
        server = self.entry.server
        self.preview.begin_run()
        self._enter_phase(Phase.SESSION_CREATE)
        project = await _in_phase(Phase.SESSION_CREATE, START_SECONDS, asyncio.to_thread(projects.infer, server))
        server_box = await _in_phase(
            Phase.SESSION_CREATE, CREATE_SECONDS,
            stack.enter_async_context(self.boxes.open(self.name, self.entry, project, self.box)),
        )  # fmt: skip
        self._enter_phase(Phase.DEP_INSTALL, server_box.box.id)
        installer = Installer(server_box, self.name, server, project, self.settings, self.preview)
        launch = await _in_phase(Phase.DEP_INSTALL, server.install_timeout_sec, installer.prepare())
        self._enter_phase(Phase.PROCESS_START, server_box.box.id)
        await _in_phase(Phase.PROCESS_START, START_SECONDS, place_secret_files(server_box.box, server.secret_files))
        starting = server_box.box.start(
            launch.argv, cwd=launch.cwd, env=launch.env, name=f"mcp-{self.name}", follow=True
        )  # fmt: skip
        job = await _in_phase(Phase.PROCESS_START, START_SECONDS, starting, missing=launch.argv[0])
        stack.push_async_callback(_end_job, server_box.box, job)
        self._enter_phase(Phase.RELAY_CONNECT, server_box.box.id, job.id)
        ended = asyncio.ensure_future(job.wait())
        stack.callback(ended.cancel)
        streams = LineStreams(job, self.preview)
        read, write = await stack.enter_async_context(streams)
        self._enter_phase(Phase.MCP_INIT, server_box.box.id, job.id)
        session = await stack.enter_async_context(self._session(read, write))
        run = Run(session, server_box.box, job, dict(server_box.paths.pairs), ended, streams)
        await self._handshake(run, server.startup_timeout_sec)
        return run

    async def _start_remote(self, stack: AsyncExitStack) -> Run:
        server = self.entry.server
        self._enter_phase(Phase.RELAY_CONNECT)
        read, write = await _in_phase(
            Phase.RELAY_CONNECT, START_SECONDS, stack.enter_async_context(remote.connect(server))
        )
        self._enter_phase(Phase.MCP_INIT)
        session = await stack.enter_async_context(self._session(read, write))
        run = Run(session, None, None, {}, None, None)
        await self._handshake(run, server.startup_timeout_sec)
        return run

    def _session(self, read: object, write: object) -> ClientSession:
        return ClientSession(
            read, write,  # type: ignore[arg-type]  # the streams of whichever transport it is
            sampling_callback=self.callbacks.sampling, elicitation_callback=self.callbacks.elicitation,
            message_handler=self.callbacks.message,
            client_info=Implementation(name="hutch", version=hutch.__version__),
        )  # fmt: skip

    async def _handshake(self, run: Run, seconds: float) -> None:
        """Wait for the handshake until its time has passed or the process has exited.

        Nothing else ends the wait: a first start that downloads for half a minute is slow, not dead.
        """
        handshake = asyncio.ensure_future(run.session.initialize())
        waited: set[asyncio.Future[object]] = {handshake, *((run.ended,) if run.ended is not None else ())}  # type: ignore[arg-type]
        begun = time.monotonic()
        try:
            await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if handshake.done() and not handshake.cancelled() and handshake.exception() is None:
                return
            if handshake.done() and run.ended is not None:
                # Its stream has closed. Wait a moment to see whether the process has exited.
                await asyncio.wait({run.ended}, timeout=END_SECONDS)
            if run.ended is not None and run.ended.done():
                network = run.box.spec.network if run.box is not None else NetworkMode.ON
                raise exit_failure(run.ended, Phase.MCP_INIT, self.preview, network)
            if not handshake.done():
                raise ServerFailed(
                    f"it did not answer `initialize` within {seconds:g} s" + _last_output(self.preview),
                    remedy="raise startup_timeout_sec if it is only slow", details={"phase": Phase.MCP_INIT},
                )  # fmt: skip
            raise ServerFailed(
                f"it did not agree on the protocol: {handshake.exception()}" + _last_output(self.preview),
                details={"phase": Phase.MCP_INIT, "seconds": round(time.monotonic() - begun, 1)},
            )
        finally:
            if not handshake.done():
                handshake.cancel()
                await asyncio.wait({handshake})


async def _in_phase(phase: Phase, seconds: float, work: Awaitable[T], *, missing: str = "") -> T:
    """Await the work of one phase within its time. Every error becomes a ServerFailed of the phase."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError as error:
        if isinstance(error, HutchError):
            raise _phase_error(phase, error) from error
        raise ServerFailed(f"it took more than {seconds:g} s", details={"phase": phase}) from error
    except ServerFailed:
        raise
    except NotRunnable as error:
        raise ServerFailed(
            f"{missing} cannot be run in the box: {error.message}", retryable=False,
            remedy=f"install it into the image, or use an image that has {missing}",
            details={"phase": phase, "cause": error.code},
        ) from error  # fmt: skip
    except HutchError as error:
        raise _phase_error(phase, error) from error
    except (MCPError, OSError) as error:
        raise ServerFailed(f"{type(error).__name__}: {error}", details={"phase": phase}) from error


_PERMANENT = frozenset(
    {
        "invalid", "refused", "disabled", "unsupported", "not_found", "file_not_found", "config", "gone", "lease_lost",
    }
)  # fmt: skip
"""Error codes for which another attempt with the same definition would fail again."""


def _phase_error(phase: Phase, error: HutchError) -> ServerFailed:
    final = error.code in _PERMANENT or (error.code == "unavailable" and not error.retryable)
    return ServerFailed(
        error.message, remedy=error.remedy, retryable=not final, details={"phase": phase, "cause": error.code}
    )  # fmt: skip


def exit_failure(
    ended: "asyncio.Task[Result]", phase: Phase, preview: OutputPreview, network: NetworkMode = NetworkMode.ON
) -> ServerFailed:
    """Return why the process ended: its exit code, or the verdict, such as out of memory.

    A server that ended before it ever answered, with words that another attempt would end with too, is not tried again.
    """
    if ended.cancelled() or (error := ended.exception()) is not None:
        why = "it was put away" if ended.cancelled() else str(error)
        return ServerFailed(f"its process is out of reach: {why}", details={"phase": phase})
    result = ended.result()
    verdict = result.verdict
    if verdict.cause in (Cause.EXIT, Cause.OK):
        message = f"its process exited with {result.exit_code}"
    else:
        message = f"its process ended: {verdict.message or verdict.cause}"
    known = _known_end(preview.tail(), network)
    final = phase is Phase.MCP_INIT and (bool(known) or result.exit_code in NOT_RUNNABLE)
    return ServerFailed(
        message + _last_output(preview), remedy=known or _remedy(verdict, result.exit_code), retryable=not final,
        details={"phase": phase, "cause": verdict.cause, "exit_code": result.exit_code, "signal": result.signal},
    )  # fmt: skip


_MISSING_MODULE = re.compile(r"No module named '([\w.]+)|Cannot find (?:module|package) '([^']+)")
"""Messages of Python and Node about a missing dependency."""
_NO_NETWORK = re.compile(
    r"name resolution|Name or service not known|ENOTFOUND|EAI_AGAIN|[Nn]etwork is unreachable|ENETUNREACH"
)
_READ_ONLY = re.compile(r"Read-only file system|EROFS")
_WRONG_ARGUMENTS = re.compile(
    r"unrecognized arguments|the following arguments are required|unknown option|No such option"
)
NOT_RUNNABLE = (126, 127)
"""Exit codes of a shell or `env` whose program cannot be run."""


def _known_end(said: str, network: NetworkMode) -> str:
    """Return the setting that helps against what a process said last, if another attempt would end the same."""
    if missing := _MISSING_MODULE.search(said):
        name = missing[1] or missing[2]
        return f"list {name} in requirements.txt, pyproject.toml or package.json of its project: Hutch installs that"
    if network is NetworkMode.OFF and _NO_NETWORK.search(said):
        return 'give it a network: network = "on" in its definition (`--network on`)'
    if _READ_ONLY.search(said):
        return 'let it write: mount = "rw" for its files (`--mount rw`), or read_only_root = false for its system'
    if _WRONG_ARGUMENTS.search(said):
        return "check `args` of its definition"
    return ""


def _remedy(verdict: Verdict, exit_code: int | None) -> str:
    """Return a remedy for the author of a server's definition."""
    if verdict.cause is Cause.OOM:
        return "raise memory_mb in its definition (`--memory`)"
    if exit_code in NOT_RUNNABLE:
        return "its program is not in the box: use an `image` that has it, or install it"
    return verdict.remedy or "the lines before that: `hutch mcp-server logs NAME`, where `hutch serve` runs it"


def _last_output(preview: OutputPreview) -> str:
    tail = preview.tail()
    return f"; it said: {tail}" if tail else ""


async def _end_job(box: Box, job: Job) -> None:
    """End the process: close its input, then send SIGTERM, then SIGKILL. The box may already be gone."""
    try:
        await job.close_stdin()
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                await job.wait(END_SECONDS)
                break
            except TimeoutError:
                await job.signal(number)
        await job.wait(END_SECONDS)
        await box.forget(job.id)
    except HutchError as error:
        log("mcp").debug("job of a server not put away", box=box.id, job=job.id, why=error.message)


FILE_MODE = 0o400
_MAKE_DIRECTORY = 'mkdir -p -m 0700 "$1"'
_MAKE_DIRECTORY_FOR = 'mkdir -p -m 0700 "$1" && chown "$2" "$1"'


async def place_secret_files(box: Box, contents: Mapping[str, str]) -> None:
    """Write a server's secret files into its box just before its process starts, readable by its user alone.

    Secrets travel only as content of files: on no command line, in no environment, and in no layer or volume that
    outlives the box. Installers run earlier and do not see them.

    Raises:
        ServerFailed: The box has no place for them.
    """
    if not contents:
        return
    await _secrets_directory(box)
    for name, text in contents.items():
        await box.files.write(f"{SECRETS_AT}/{name}", text, mode=FILE_MODE, parents=False)


async def _secrets_directory(box: Box) -> None:
    """Create the directory as the box's user, or as root for that user if /run belongs to root."""
    made = await box.exec(["sh", "-c", _MAKE_DIRECTORY, "sh", SECRETS_AT])
    if made.ok:
        return
    user = (await box.exec(["id", "-u"])).stdout.strip()
    made = await box.exec(["sh", "-c", _MAKE_DIRECTORY_FOR, "sh", SECRETS_AT, user], user="root")
    if not made.ok:
        raise ServerFailed(
            f"{SECRETS_AT} cannot be made in its box: {made.stderr.strip()[-200:]}", retryable=False,
            remedy="give it a writable root, or pass the secret by env", details={"phase": Phase.PROCESS_START},
        )  # fmt: skip
