"""One run of a server: from nothing to a session that has answered `initialize`, phase by phase (B36).

Each phase has its own time and its own error, and whatever happens, what an earlier phase has made is put away again.
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
from hutch.mcp.hosting.boxes import Boxes
from hutch.mcp.hosting.dependencies import Installer
from hutch.mcp.hosting.json_lines import LineStreams, Preview
from hutch.mcp.hosting.registry import Entry
from hutch.model.mcp import SECRETS_AT, Phase, Transport
from hutch.model.results import Cause, Result, Verdict
from hutch.policy.rights import UNBOUND, bound_by
from mcp import ClientSession, MCPError

T = TypeVar("T")

CREATE_SECONDS = 60.0
START_SECONDS = 30.0
END_SECONDS = 2.0
"""How long a server may take to end when its input has closed, and again when it was asked to."""


@dataclass(frozen=True)
class Callbacks:
    """Who answers what a server asks its client. Roots are not offered: a client's paths mean nothing in the box."""

    sampling: SamplingFnT
    elicitation: ElicitationFnT
    message: MessageHandlerFnT


@dataclass
class Run:
    """A server that answers."""

    session: ClientSession
    box: Box | None
    job: Job | None
    files: dict[str, str]
    ended: "asyncio.Task[Result] | None"
    """Done when the process has really exited; only that is an exit (lesson 38)."""
    streams: LineStreams | None


@dataclass
class Making:
    """What a run is made from, and where it tells how far it is."""

    name: str
    entry: Entry
    boxes: Boxes
    settings: McpTable
    preview: Preview
    callbacks: Callbacks
    on_phase: Callable[[Phase, str, str], None]
    """Phase, box and job, as they are reached."""
    box: Box | None = None
    """The conversation's, where the server shares that one."""
    phase: Phase = Phase.SESSION_CREATE

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Run]:
        """ServerFailed, which names the phase."""
        if self.entry.server.transport is Transport.STDIO:
            async with self._entered(self._boxed) as run:
                yield run
            return
        try:
            async with self._entered(self._elsewhere) as run:
                yield run
        except remote.LOST as error:
            if isinstance(error, HutchError):
                raise
            raise ServerFailed(
                f"{remote.address(self.entry.server.url)} cannot be reached: {remote.reason(error)}",
                remedy="check its url and headers", details={"phase": self.phase},
            ) from error  # fmt: skip

    @asynccontextmanager
    async def _entered(self, make: Callable[[AsyncExitStack], Awaitable[Run]]) -> AsyncIterator[Run]:
        failure: ServerFailed | None = None
        async with AsyncExitStack() as stack:
            # Not through the stack: the task groups of the SDK in it would wrap the error in groups of their own.
            try:
                run = await make(stack)
                self._reached(Phase.RUNTIME, run.box.id if run.box else "", run.job.id if run.job else "")
                yield run
            except ServerFailed as error:
                failure = error
        if failure is not None:
            raise failure

    def _reached(self, phase: Phase, box: str = "", job: str = "") -> None:
        self.phase = phase
        self.on_phase(phase, box, job)

    async def _boxed(self, stack: AsyncExitStack) -> Run:
        # The box has the rights of whoever registered the server. What runs in it is no command of the caller whose
        # request happened to begin this task: that caller's timeouts do not end the server.
        with bound_by(UNBOUND):
            return await self._begun(stack)

    async def _begun(self, stack: AsyncExitStack) -> Run:
        server = self.entry.server
        self.preview.begin()
        self._reached(Phase.SESSION_CREATE)
        project = await _within(Phase.SESSION_CREATE, START_SECONDS, asyncio.to_thread(projects.infer, server))
        room = await _within(
            Phase.SESSION_CREATE, CREATE_SECONDS,
            stack.enter_async_context(self.boxes.room(self.name, self.entry, project, self.box)),
        )  # fmt: skip
        self._reached(Phase.DEP_INSTALL, room.box.id)
        installer = Installer(room, self.name, server, project, self.settings, self.preview)
        launch = await _within(Phase.DEP_INSTALL, server.install_timeout_sec, installer.prepare())
        self._reached(Phase.PROCESS_START, room.box.id)
        await _within(Phase.PROCESS_START, START_SECONDS, place_secret_files(room.box, server.secret_files))
        starting = room.box.start(
            launch.argv, cwd=launch.cwd, env=launch.env, name=f"mcp-{self.name}", follow=True
        )  # fmt: skip
        job = await _within(Phase.PROCESS_START, START_SECONDS, starting, missing=launch.argv[0])
        stack.push_async_callback(_put_away, room.box, job)
        self._reached(Phase.RELAY_CONNECT, room.box.id, job.id)
        ended = asyncio.ensure_future(job.wait())
        stack.callback(ended.cancel)
        streams = LineStreams(job, self.preview)
        read, write = await stack.enter_async_context(streams)
        self._reached(Phase.MCP_INIT, room.box.id, job.id)
        session = await stack.enter_async_context(self._session(read, write))
        run = Run(session, room.box, job, dict(room.places.pairs), ended, streams)
        await self._greet(run, server.startup_timeout_sec)
        return run

    async def _elsewhere(self, stack: AsyncExitStack) -> Run:
        server = self.entry.server
        self._reached(Phase.RELAY_CONNECT)
        read, write = await _within(
            Phase.RELAY_CONNECT, START_SECONDS, stack.enter_async_context(remote.connected(server))
        )
        self._reached(Phase.MCP_INIT)
        session = await stack.enter_async_context(self._session(read, write))
        run = Run(session, None, None, {}, None, None)
        await self._greet(run, server.startup_timeout_sec)
        return run

    def _session(self, read: object, write: object) -> ClientSession:
        return ClientSession(
            read, write,  # type: ignore[arg-type]  # the streams of whichever transport it is
            sampling_callback=self.callbacks.sampling, elicitation_callback=self.callbacks.elicitation,
            message_handler=self.callbacks.message,
            client_info=Implementation(name="hutch", version=hutch.__version__),
        )  # fmt: skip

    async def _greet(self, run: Run, seconds: float) -> None:
        """The handshake. It is given up when its time has passed or the process has exited, and for nothing less: a
        first start that downloads for half a minute is slow, not dead (lesson 38)."""
        greeting = asyncio.ensure_future(run.session.initialize())
        waited: set[asyncio.Future[object]] = {greeting, *((run.ended,) if run.ended is not None else ())}  # type: ignore[arg-type]
        begun = time.monotonic()
        try:
            await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if greeting.done() and not greeting.cancelled() and greeting.exception() is None:
                return
            if greeting.done() and run.ended is not None:
                # Its stream has closed: whether the process is behind that shows in a moment.
                await asyncio.wait({run.ended}, timeout=END_SECONDS)
            if run.ended is not None and run.ended.done():
                raise ended_as(run.ended, Phase.MCP_INIT, self.preview)
            if not greeting.done():
                raise ServerFailed(
                    f"it did not answer `initialize` within {seconds:g} s" + _said(self.preview),
                    remedy="raise startup_timeout_sec if it is only slow", details={"phase": Phase.MCP_INIT},
                )  # fmt: skip
            raise ServerFailed(
                f"it did not agree on the protocol: {greeting.exception()}" + _said(self.preview),
                details={"phase": Phase.MCP_INIT, "seconds": round(time.monotonic() - begun, 1)},
            )
        finally:
            if not greeting.done():
                greeting.cancel()
                await asyncio.wait({greeting})


async def _within(phase: Phase, seconds: float, work: Awaitable[T], *, missing: str = "") -> T:
    """The result of one phase, in its time; every error becomes that of the phase."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError as error:
        if isinstance(error, HutchError):
            raise _of(phase, error) from error
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
        raise _of(phase, error) from error
    except (MCPError, OSError) as error:
        raise ServerFailed(f"{type(error).__name__}: {error}", details={"phase": phase}) from error


_FINAL = frozenset(
    {
        "invalid", "refused", "disabled", "unsupported", "not_found", "file_not_found", "config", "gone", "lease_lost",
    }
)  # fmt: skip
"""The same definition meets the same answer next time."""


def _of(phase: Phase, error: HutchError) -> ServerFailed:
    final = error.code in _FINAL or (error.code == "unavailable" and not error.retryable)
    return ServerFailed(
        error.message, remedy=error.remedy, retryable=not final, details={"phase": phase, "cause": error.code}
    )  # fmt: skip


def ended_as(ended: "asyncio.Task[Result]", phase: Phase, preview: Preview) -> ServerFailed:
    """Why the process is no more: its exit code, or what the verdict says (out of memory is said to be that)."""
    if ended.cancelled() or (error := ended.exception()) is not None:
        why = "it was put away" if ended.cancelled() else str(error)
        return ServerFailed(f"its process is out of reach: {why}", details={"phase": phase})
    result = ended.result()
    verdict = result.verdict
    if verdict.cause in (Cause.EXIT, Cause.OK):
        message = f"its process exited with {result.exit_code}"
    else:
        message = f"its process ended: {verdict.message or verdict.cause}"
    return ServerFailed(
        message + _said(preview), remedy=_remedy(verdict, preview.tail()),
        details={"phase": phase, "cause": verdict.cause, "exit_code": result.exit_code, "signal": result.signal},
    )  # fmt: skip


_MISSING = re.compile(r"No module named '([\w.]+)|Cannot find (?:module|package) '([^']+)")
"""What Python and Node say of a dependency that nobody has installed."""


def _remedy(verdict: Verdict, said: str) -> str:
    """For whoever writes definitions of servers."""
    if verdict.cause is Cause.OOM:
        return "raise memory_mb in its definition (`--memory`)"
    if missing := _MISSING.search(said):
        name = missing[1] or missing[2]
        return f"list {name} in requirements.txt, pyproject.toml or package.json of its project: Hutch installs that"
    return verdict.remedy or "the lines before that: `hutch mcp-server logs NAME`, where `hutch serve` runs it"


def _said(preview: Preview) -> str:
    tail = preview.tail()
    return f"; it said: {tail}" if tail else ""


async def _put_away(box: Box, job: Job) -> None:
    """Its input closes, which tells a well-behaved server to end; then it is asked, then killed. The box may be gone
    already."""
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
_MINE = 'mkdir -p -m 0700 "$1"'
_GIVEN = 'mkdir -p -m 0700 "$1" && chown "$2" "$1"'


async def place_secret_files(box: Box, contents: Mapping[str, str]) -> None:
    """ServerFailed if the box has no place for them: without its secrets a server is not started."""
    if not contents:
        return
    await _directory(box)
    for name, text in contents.items():
        await box.files.write(f"{SECRETS_AT}/{name}", text, mode=FILE_MODE, parents=False)


async def _directory(box: Box) -> None:
    """The box's own user makes it where it may write to /run; where that is root's, root makes it for him."""
    made = await box.exec(["sh", "-c", _MINE, "sh", SECRETS_AT])
    if made.ok:
        return
    user = (await box.exec(["id", "-u"])).stdout.strip()
    made = await box.exec(["sh", "-c", _GIVEN, "sh", SECRETS_AT, user], user="root")
    if not made.ok:
        raise ServerFailed(
            f"{SECRETS_AT} cannot be made in its box: {made.stderr.strip()[-200:]}", retryable=False,
            remedy="give it a writable root, or pass the secret by env", details={"phase": Phase.PROCESS_START},
        )  # fmt: skip
