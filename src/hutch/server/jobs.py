"""Jobs over HTTP: processes that live on their own, read by cursor."""

from typing import Annotated, Any, Literal

import msgspec

from hutch.model.record import Record
from hutch.model.results import JobInfo
from hutch.server.access import job_of, looking, using
from hutch.server.call import BYTES, Call, Reply
from hutch.server.commands import Seconds
from hutch.server.views import chunk_view, result_view

WaitSeconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]
Size = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class JobBody(Record, frozen=True, kw_only=True):
    """Its input stays open until `stdin?close=true`."""

    command: str | tuple[str, ...]
    cwd: str | None = None
    env: dict[str, str] = msgspec.field(default_factory=dict)
    timeout: Seconds | None = None
    user: str | None = None
    pty: bool = False
    rows: Size = 24
    cols: Size = 80
    name: Annotated[str, msgspec.Meta(max_length=200)] = ""


class JobList(Record, frozen=True, kw_only=True):
    jobs: tuple[JobInfo, ...]


class OutputQuery(Record, frozen=True, kw_only=True):
    stream: Literal["stdout", "stderr"] = "stdout"
    cursor: Annotated[int, msgspec.Meta(ge=0)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=16 << 20)] = 65536
    wait: WaitSeconds = 0.0
    """Seconds to wait for the first new byte or the end."""


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
    """A process that lives on its own; its input stays open until it is closed."""
    async with using(call) as box:
        options: dict[str, Any] = {name: getattr(body, name) for name in body.__struct_fields__ if name != "command"}
        job = await box.start(body.command, **options)
        info = await job.info()
    return Reply(info, 201, headers={"location": f"/v1/boxes/{call.params['box']}/jobs/{job.id}"})


async def list_jobs(call: Call) -> Reply:
    """Those that run, and ended ones whose output is kept."""
    async with looking(call) as guard:
        instance = await guard.begin()
        try:
            return Reply(JobList(jobs=await instance.jobs()))
        finally:
            guard.end()


async def get(call: Call) -> Reply:
    """State, exit code, how much it wrote."""
    async with looking(call) as guard:
        return Reply(await (await job_of(call, guard)).info())


async def output(call: Call, query: OutputQuery) -> Reply:
    """Accept: application/octet-stream gives the bytes alone, with cursor and end in headers."""
    async with looking(call) as guard:
        job = await job_of(call, guard)
        reading = job.read(query.cursor, stream=query.stream, limit=query.limit, wait=query.wait)
        chunk = await call.service.unless_draining(reading) if query.wait else await reading
    if not call.accepts(BYTES):
        return Reply(chunk_view(chunk))
    told = {
        "hutch-cursor": str(chunk.cursor), "hutch-eof": str(chunk.eof).lower(), "hutch-dropped": str(chunk.dropped)
    }  # fmt: skip
    return Reply(chunk.data, type=BYTES, headers=told)


async def stdin(call: Call, query: StdinQuery) -> Reply:
    """The body is the input, as it is."""
    async with using(call) as box:
        job = await job_of(call, box)
        async for piece in call.pieces(call.service.config.server.max_upload_mb << 20):
            await job.write(piece)
        if query.close:
            await job.close_stdin()
    return Reply(status=204)


async def signal(call: Call, body: SignalBody) -> Reply:
    """To the process and its children."""
    async with using(call) as box:
        await (await job_of(call, box)).signal(body.number)
    return Reply(status=204)


async def resize(call: Call, body: ResizeBody) -> Reply:
    """Of a job with a terminal."""
    async with using(call) as box:
        await (await job_of(call, box)).resize(body.rows, body.cols)
    return Reply(status=204)


async def wait(call: Call, body: WaitBody) -> Reply:
    """Its result; `timeout` if it still runs then, and the job goes on."""
    async with looking(call) as guard:
        job = await job_of(call, guard)
        result = await call.service.unless_draining(job.wait(body.timeout_sec))
    return Reply(result_view(result))


async def forget(call: Call) -> Reply:
    """An ended job and its output; a running one is a conflict."""
    async with using(call) as box:
        instance = await box.begin()
        try:
            await instance.forget(call.params["job"])
        finally:
            box.end()
    return Reply(status=204)
