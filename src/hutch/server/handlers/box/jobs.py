"""Jobs over HTTP: processes that outlive the request, whose output is read by cursor."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Annotated, Any, ClassVar, Literal, cast

import msgspec

from hutch.errors import Conflict, HutchError, Invalid
from hutch.keeper.access.jobs import JobHandle
from hutch.model.record import Record
from hutch.model.results import JobInfo
from hutch.policy.effective import clamp_timeout
from hutch.server.access import job_of, observing, using
from hutch.server.error_status import error_to_wire
from hutch.server.handlers.box.commands import ERROR, STDERR, STDOUT, Seconds, frame
from hutch.server.request import BYTES, Call, Reply
from hutch.server.wire import StreamedResult, chunk_to_wire

SKIPPED_OUT, SKIPPED_ERR = 5, 6

_OPTIONS = ("cwd", "env", "timeout", "user", "pty", "rows", "cols", "name", "follow")
WaitSeconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]
Size = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class JobBody(Record, frozen=True, kw_only=True):
    """A job. Its input stays open until `stdin?close=true`, unless it is given here."""

    odd_names: ClassVar[bool] = True

    command: str | tuple[str, ...]
    cwd: str | None = None
    env: dict[str, str] = msgspec.field(default_factory=dict)
    timeout: Seconds | None = None
    user: str | None = None
    pty: bool = False
    rows: Size = 24
    cols: Size = 80
    name: Annotated[str, msgspec.Meta(max_length=200)] = ""
    follow: bool = False
    """A client follows the output, which waits for it instead of being spilled to disk."""
    attended: bool = False
    """The job is a command like those of `exec` whose output is followed, with its timeout and the input given here."""
    stdin: str | None = None
    stdin_base64: bytes | None = None


class JobList(Record, frozen=True, kw_only=True):
    jobs: tuple[JobInfo, ...]


class OutputQuery(Record, frozen=True, kw_only=True):
    stream: Literal["stdout", "stderr"] = "stdout"
    cursor: Annotated[int, msgspec.Meta(ge=0)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=16 << 20)] = 65536
    wait: WaitSeconds = 0.0
    """Seconds to wait for new output or the end."""


class FollowQuery(Record, frozen=True, kw_only=True):
    stdout: Annotated[int, msgspec.Meta(ge=0)] = 0
    stderr: Annotated[int, msgspec.Meta(ge=0)] = 0


class StdinQuery(Record, frozen=True, kw_only=True):
    close: bool = False


class SignalBody(Record, frozen=True, kw_only=True):
    number: Annotated[int, msgspec.Meta(ge=1, le=64)] = 15


class ResizeBody(Record, frozen=True, kw_only=True):
    rows: Size
    cols: Size


class WaitBody(Record, frozen=True, kw_only=True):
    timeout_sec: WaitSeconds = 60.0


async def start(call: Call, body: JobBody) -> Reply:
    """Start a process that outlives the request; its input stays open until it is closed."""
    if not body.attended and not (body.stdin is None and body.stdin_base64 is None):
        raise Invalid("only an attended job takes input at its start", op="start", remedy="write to its stdin")
    return await call.service.operations.run_once(call, _start(call, body))


async def _start(call: Call, body: JobBody) -> Reply:
    notes: tuple[str, ...] = ()
    options: dict[str, Any] = {name: getattr(body, name) for name in _OPTIONS}
    async with using(call) as box:
        if body.attended:
            seconds, clamped = clamp_timeout(body.timeout, box.spec.limits)
            options |= {"timeout": seconds or None, "follow": True}
            notes = (str(clamped),) if clamped else ()
        job = await box.start(body.command, **options)
        if body.attended:
            await _write_stdin(job, body)
        info = await job.info()
        notes += job.notes
    headers = {"location": f"/v1/boxes/{call.params['box']}/jobs/{job.id}", "hutch-notes": json.dumps(notes)}
    return Reply(info, 201, headers=headers)


async def _write_stdin(job: JobHandle, body: JobBody) -> None:
    data = body.stdin_base64 if body.stdin is None else body.stdin.encode("utf-8", "surrogateescape")
    with suppress(Conflict):  # A command may end before it has read its input.
        if data:
            await job.write(data)
        await job.close_stdin()


async def list_jobs(call: Call) -> Reply:
    """List the running jobs, and the ended ones whose output is kept."""
    async with observing(call) as guard:
        instance = await guard.begin()
        try:
            return Reply(JobList(jobs=await instance.jobs()))
        finally:
            guard.end()


async def get(call: Call) -> Reply:
    """Return a job's state, exit code and amount of output."""
    async with observing(call) as guard:
        return Reply(await (await job_of(call, guard)).info())


async def output(call: Call, query: OutputQuery) -> Reply:
    """Return a job's output. Accept: application/octet-stream returns only bytes, with cursor and end in headers."""
    async with observing(call) as guard:
        job = await job_of(call, guard)
        reading = job.read(query.cursor, stream=query.stream, limit=query.limit, wait=query.wait)
        chunk = await call.service.unless_draining(reading) if query.wait else await reading
    if not call.accepts(BYTES):
        return Reply(chunk_to_wire(chunk))
    headers = {
        "hutch-cursor": str(chunk.cursor), "hutch-eof": str(chunk.eof).lower(), "hutch-dropped": str(chunk.dropped)
    }  # fmt: skip
    return Reply(chunk.data, type=BYTES, headers=headers)


async def follow(call: Call, query: FollowQuery) -> Reply:
    """Stream stdout and stderr from these cursors to the end, in frames: kind (1 stdout, 2 stderr; 5 and 6 give the
    number of lost bytes of each in decimal; 4 is the error that ended it), length (4 bytes, big endian), data."""
    return Reply(_follow(call, query), type=BYTES)


async def _follow(call: Call, query: FollowQuery) -> AsyncGenerator[bytes, None]:
    async with observing(call) as guard:
        job = await job_of(call, guard)
        starts = {"stdout": query.stdout, "stderr": query.stderr}
        for (stream, start), kind in zip(starts.items(), (SKIPPED_OUT, SKIPPED_ERR), strict=True):
            if start and (lost := (await job.read(start, stream=stream, limit=1)).dropped):
                yield frame(kind, str(lost).encode())
                starts[stream] += lost
        pieces = cast(AsyncGenerator[tuple[str, bytes], None], job.follow(**starts))
        yield b""
        try:
            async with aclosing(pieces):
                while (piece := await call.service.unless_draining(_next(pieces))) is not None:
                    yield frame(STDOUT if piece[0] == "stdout" else STDERR, piece[1])
        except HutchError as error:
            yield frame(ERROR, msgspec.json.encode(error_to_wire(error, call.op)))


async def _next(pieces: AsyncGenerator[tuple[str, bytes], None]) -> tuple[str, bytes] | None:
    return await anext(pieces, None)


async def stdin(call: Call, query: StdinQuery) -> Reply:
    """Write the body to the job's input."""
    async with using(call) as box:
        job = await job_of(call, box)
        async for piece in call.pieces(call.service.config.server.max_upload_mb << 20):
            await job.write(piece)
        if query.close:
            await job.close_stdin()
    return Reply(status=204)


async def signal(call: Call, body: SignalBody) -> Reply:
    """Send a signal to the process and its children."""
    async with using(call) as box:
        await (await job_of(call, box)).signal(body.number)
    return Reply(status=204)


async def resize(call: Call, body: ResizeBody) -> Reply:
    """Resize the terminal of a job."""
    async with using(call) as box:
        await (await job_of(call, box)).resize(body.rows, body.cols)
    return Reply(status=204)


async def wait(call: Call, body: WaitBody) -> Reply:
    """Wait for a job's result; `timeout` if it still runs then, and the job keeps running."""
    async with observing(call) as guard:
        job = await job_of(call, guard)
        result = await call.service.unless_draining(job.wait(body.timeout_sec))
    return Reply(StreamedResult(result))


async def forget(call: Call) -> Reply:
    """Forget an ended job and its output; a conflict if it still runs."""
    async with using(call) as box:
        await box.forget(call.params["job"])
    return Reply(status=204)
