"""`process.Process`: processes of a sandbox are jobs of its box, found by their pid or by their tag."""

import base64
from collections.abc import AsyncGenerator
from typing import Annotated

import msgspec

from hutch.errors import Conflict, Invalid, NotFound, NotRunnable
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.access.jobs import JobHandle
from hutch.model.results import Cause, JobInfo, JobState
from hutch.server.e2b.agent.connect import ConnectError, Message, Nothing, deadline
from hutch.server.e2b.requests import Request
from hutch.server.e2b.sandboxes import SUDO_JOB

KEEPALIVE: Message = {"event": {"keepalive": {}}}
_SIGNALS = {"SIGNAL_SIGTERM": 15, "SIGNAL_SIGKILL": 9, "15": 15, "9": 9}
_NAMES = {
    1: "hangup", 2: "interrupt", 6: "aborted", 9: "killed", 11: "segmentation fault", 13: "broken pipe",
    15: "terminated",
}  # fmt: skip
"""Signals as Go's standard library names them, which is what clients of E2B see."""

Cells = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cmd: str
    args: list[str] = []
    envs: dict[str, str] = {}
    cwd: str = ""


class Size(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cols: Cells = 80
    rows: Cells = 24


class Pty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: Size = Size()


class StartMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    process: Config
    stdin: bool = True
    pty: Pty | None = None
    tag: Annotated[str, msgspec.Meta(max_length=200)] = ""


class Selector(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names a process by its pid or by its tag."""

    pid: int | None = None
    tag: str = ""

    def __str__(self) -> str:
        return f"tag {self.tag}" if self.pid is None else f"pid {self.pid}"


class ProcessMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    process: Selector


class Input(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    stdin: bytes | None = None
    pty: bytes | None = None


class InputMessage(ProcessMessage, frozen=True):
    input: Input


class InputData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    input: Input


class StreamMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message of streamed input, with one of these fields. The first message of a stream has `start`."""

    start: ProcessMessage | None = None
    data: InputData | None = None
    keepalive: Nothing | None = None


class SignalMessage(ProcessMessage, frozen=True):
    signal: str | int


class UpdateMessage(ProcessMessage, frozen=True):
    pty: Pty = Pty()


async def start(request: Request, message: StartMessage) -> AsyncGenerator[Message, None]:
    """Start a process and stream its output. It goes on if the client leaves, and is killed at the call's deadline."""
    process, size = message.process, (message.pty or Pty()).size
    async with request.using() as box:
        await request.sandboxes.sudo.ensure(box)
        try:
            job = await box.start(
                (process.cmd, *process.args), cwd=request.resolve(process.cwd), env=process.envs,
                timeout=deadline(request), user=request.user, pty=message.pty is not None, rows=size.rows or 24,
                cols=size.cols or 80, name=message.tag, follow=True,
                open_stdin=message.stdin or message.pty is not None,
            )  # fmt: skip
        except NotRunnable as error:
            if error.details.get("what") == "cwd":
                raise Invalid(f"cwd '{process.cwd}' does not exist") from error
            raise
        pid = job.pid or (await job.info()).pid
        async for event in _follow(job, pid, 0, 0, pty=message.pty is not None):
            yield event


async def connect(request: Request, message: ProcessMessage) -> AsyncGenerator[Message, None]:
    """Stream the output of a process from now on."""
    async with request.using() as box:
        info = await _find(box, message)
        job = await box.job(info.id)
        async for event in _follow(job, info.pid, info.stdout_total, info.stderr_total, pty=info.pty):
            yield event


async def _follow(
    job: JobHandle, pid: int, stdout: int, stderr: int, *, pty: bool
) -> AsyncGenerator[Message, None]:  # fmt: skip
    yield {"event": {"start": {"pid": pid}}}
    async for stream, data in job.follow(stdout, stderr):
        name = "pty" if pty else stream
        yield {"event": {"data": {name: base64.b64encode(data).decode()}}}
    yield {"event": {"end": _end(await job.info())}}


def _end(info: JobInfo) -> Message:
    if info.verdict is not None and info.verdict.cause is Cause.TIMEOUT:
        raise ConnectError("deadline_exceeded", "the process was killed at the deadline of its call")
    if info.signal is not None:
        status = f"signal: {_NAMES.get(info.signal, info.signal)}"
        return {"exitCode": -1, "exited": False, "status": status, "error": status}
    code = info.exit_code or 0
    status = f"exit status {code}"
    return {"exitCode": code, "exited": True, "status": status} | ({"error": status} if code else {})


# --- processes that run -----------------------------------------------------------------------------------------


async def _find(box: BoxHandle, message: ProcessMessage) -> JobInfo:
    """Return the newest process that the message selects; NotFound if there is none."""
    selected = message.process
    if selected.pid is not None and selected.tag:
        raise Invalid("a process is named by its pid or by its tag, not by both")
    for info in reversed(await box.jobs()):
        if info.pid == selected.pid or (selected.pid is None and selected.tag and info.name == selected.tag):
            return info
    raise NotFound(f"process with {selected} not found")


async def _running(box: BoxHandle, message: ProcessMessage) -> JobHandle:
    info = await _find(box, message)
    if info.state is not JobState.RUNNING:
        raise NotFound(f"process with {message.process} not found")
    return await box.job(info.id)


async def list_processes(request: Request, message: Nothing) -> Message:
    """List the processes that clients have started and that run."""
    async with request.using() as box:
        running = [info for info in await box.jobs() if info.state is JobState.RUNNING and info.name != SUDO_JOB]
        return {"processes": [_described(info) for info in running]}


def _described(info: JobInfo) -> Message:
    command, *args = info.command
    described: Message = {"pid": info.pid, "config": {"cmd": command, "args": args, "envs": {}}}
    return described | {"tag": info.name} if info.name else described


async def send_input(request: Request, message: InputMessage) -> Message:
    """Write to a process's input or terminal."""
    async with request.using() as box:
        await _write(await _running(box, message), message.input)
    return {}


async def _write(job: JobHandle, given: Input) -> None:
    data = given.stdin if given.pty is None else given.pty
    if data is None or (given.stdin is not None and given.pty is not None):
        raise Invalid("input has either stdin or pty")
    try:
        await job.write(data)
    except Conflict as error:
        raise ConnectError("internal", f"error writing to stdin: {error.message}") from error


async def stream_input(request: Request, messages: AsyncGenerator[StreamMessage, None]) -> Message:
    """Write to a process's input or terminal as the pieces arrive."""
    first = await anext(messages, None)
    if first is None or first.start is None:
        raise Invalid("the first message of a stream of input names its process")
    async with request.using() as box:
        job = await _running(box, first.start)
        async for message in messages:
            if message.data is not None:
                await _write(job, message.data.input)
    return {}


async def close_stdin(request: Request, message: ProcessMessage) -> Message:
    """Close a process's input."""
    async with request.using() as box:
        await (await _running(box, message)).close_stdin()
    return {}


async def send_signal(request: Request, message: SignalMessage) -> Message:
    """Send SIGTERM or SIGKILL to a process."""
    number = _SIGNALS.get(str(message.signal))
    if number is None:
        raise Invalid(f"signal {message.signal!r} is neither SIGNAL_SIGTERM nor SIGNAL_SIGKILL")
    async with request.using() as box:
        await (await _running(box, message)).signal(number)
    return {}


async def update(request: Request, message: UpdateMessage) -> Message:
    """Resize a process's terminal."""
    size = message.pty.size
    async with request.using() as box:
        await (await _running(box, message)).resize(size.rows or 24, size.cols or 80)
    return {}
