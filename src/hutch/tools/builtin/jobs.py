"""The tool `job`: processes that continue between calls. Start, read, write, signal, wait and list."""

import signal
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta

from hutch.api import Box, Job
from hutch.errors import Gone, Invalid, NotFound, Timeout
from hutch.model.results import JobInfo, JobState, Result
from hutch.tools.arguments import missing_argument
from hutch.tools.builtin.answers import JobAnswer
from hutch.tools.builtin.exec import Command, Cwd, Env
from hutch.tools.builtin.output import handle_of, render, verdict_facts, whole_characters
from hutch.tools.call import Call, shorten
from hutch.tools.definition import Arguments, tool
from hutch.tools.result import ToolResult, answer

WAIT_SECONDS = 30.0
MAX_WAIT = 600.0


class JobAction(StrEnum):
    START = "start"
    READ = "read"
    WRITE = "write"
    SIGNAL = "signal"
    WAIT = "wait"
    LIST = "list"


JOB_ACTIONS: dict[str, str] = {
    JobAction.START: "run a command in the background and return at once with its id (command, cwd, env, name)",
    JobAction.READ: "its output from where your last read ended (job, stream, offset, limit, wait)",
    JobAction.WRITE: "text for its standard input (job, input, close_input)",
    JobAction.SIGNAL: "end it or tell it something (job, signal)",
    JobAction.WAIT: "wait up to some seconds for its end (job, wait)",
    JobAction.LIST: "all jobs of the box",
}


class Stream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


class JobArguments(Arguments, frozen=True, kw_only=True):
    action: JobAction
    command: Command | None = None
    cwd: Cwd | None = None
    env: Env | None = None
    name: Annotated[str, Meta(description="start: a name for the list.", max_length=100)] | None = None
    terminal: Annotated[bool, Meta(description="start: give it a terminal (for interactive programs).")] = False
    job: Annotated[str, Meta(description="The job's id, from start or list.", max_length=200)] | None = None
    stream: Annotated[Stream, Meta(description="read: which output.")] = Stream.STDOUT
    offset: (
        Annotated[int, Meta(description="read: byte to begin at; default: where your last read ended.", ge=0, le=2**53)]
        | None
    ) = None
    limit: Annotated[int, Meta(description="read: bytes at most.", ge=1, le=200_000)] = 30_000
    wait: (
        Annotated[
            float,
            Meta(description="read, wait: seconds to wait for output or for the end.", ge=0, le=MAX_WAIT),
        ]
        | None
    ) = None
    input: Annotated[str, Meta(description="write: text for its standard input.")] | None = None
    close_input: Annotated[bool, Meta(description="write: no more input comes after this.")] = False
    signal: (
        Annotated[str, Meta(description="signal: TERM (default), INT, KILL, HUP, … or a number.", max_length=20)] | None
    ) = None


@tool(
    "job",
    JobArguments,
    answers=JobAnswer,
    example={"action": "start", "command": "make -j2"},
    action="action",
    actions=JOB_ACTIONS,
    settles=True,
)
async def job_tool(call: Call, given: JobArguments) -> ToolResult:
    """Work that takes longer than one call: start a command as a job in the current box and go on; read its output,
    write to its input, send it a signal, wait for its end, or list all jobs. A job runs until it ends or is signalled,
    and its output is kept. Use it for builds, servers, watchers and interactive programs."""
    if given.action is JobAction.START:
        return await _start(call, given)
    await call.gate.check_tool()
    if given.action is JobAction.LIST:
        return await call.on_box(_list)
    if given.job is None:
        raise missing_argument("job", "job", given.action, {"action": str(given.action), "job": "j1"})
    do = {
        JobAction.READ: _read, JobAction.WRITE: _write, JobAction.SIGNAL: _signal, JobAction.WAIT: _wait,
    }[given.action]  # fmt: skip
    job_id = given.job

    async def work(box: Box) -> ToolResult:
        where, job = await find_job(call, box, job_id)
        return await do(call, where, job, given)

    return await call.on_box(work)


async def find_job(call: Call, box: Box, job_id: str) -> tuple[Box, Job]:
    """Find a job in the current box, or else in another box that the agent holds, since it may have switched boxes."""
    for each in (box, *(other for other in call.agent.held.values() if other.id != box.id)):
        try:
            return each, await each.job(job_id)
        except NotFound as missing:
            if isinstance(missing, Gone):
                raise
    raise NotFound(
        f"there is no job {job_id[:80]!r} in box {box.id}", op="job", remedy='see which there are: job(action="list")'
    )


async def _start(call: Call, given: JobArguments) -> ToolResult:
    command = given.command
    if command is None:
        raise missing_argument("job", "command", given.action, {"action": "start", "command": "make -j2"})
    await call.gate.check_command(command)

    async def start(box: Box) -> ToolResult:
        job = await box.start(command, cwd=given.cwd, env=given.env, pty=given.terminal, name=given.name or "")
        text = (
            f"job {job.id} started: {shorten(command)}\n"
            f'Read its output with job(action="read", job="{job.id}"); wait for its end with action="wait".'
        )
        return answer(text, {"box": box.id, "job": job.id, "state": "running"})

    return await call.on_box(start)


async def _read(call: Call, box: Box, job: Job, given: JobArguments) -> ToolResult:
    key = (box.id, job.id, str(given.stream))
    start = call.agent.job_cursors.get(key, 0) if given.offset is None else given.offset
    waiting = job.read(start, stream=given.stream, limit=given.limit, wait=given.wait or 0.0)
    chunk = await call.with_progress(waiting, f"waiting for output of {job.id}", given.wait)
    data, cursor = chunk.data, chunk.cursor
    if not chunk.eof and (whole := whole_characters(data)):
        cursor -= len(data) - len(whole)
        data = whole
    call.agent.job_cursors[key] = cursor
    info = await job.info()
    total = info.stderr_total if given.stream is Stream.STDERR else info.stdout_total
    lines = [data.decode("utf-8", "replace").removesuffix("\n")] if data else ["(no new output)"]
    if chunk.dropped:
        lines.insert(0, f"[{chunk.dropped:,} bytes before this are lost: the output was larger than the box keeps]")
    left = max(0, total - cursor)
    more = f"; {left:,} bytes more are there, read again" if left else ""
    lines.append(f"[job {job.id}: {_state(info)}; {given.stream} read up to byte {cursor:,} of {total:,}{more}]")
    return answer(
        "\n".join(lines),
        {
            "box": box.id, "job": job.id, "stream": str(given.stream), "text": data.decode("utf-8", "replace"),
            "next_offset": cursor, "total": total, "eof": chunk.eof, "dropped": chunk.dropped, **_facts(info),
        },
    )  # fmt: skip


async def _write(call: Call, box: Box, job: Job, given: JobArguments) -> ToolResult:
    if given.input is None and not given.close_input:
        raise missing_argument("job", "input", given.action, {"action": "write", "job": job.id, "input": "yes\n"})
    data = (given.input or "").encode()
    if data:
        await job.write(data)
    if given.close_input:
        await job.close_stdin()
    text = f"{len(data):,} bytes written to job {job.id}" + (", its input is closed" if given.close_input else "")
    return answer(text, {"box": box.id, "job": job.id, "written": len(data), "closed": given.close_input})


async def _signal(call: Call, box: Box, job: Job, given: JobArguments) -> ToolResult:
    number = _signal_number(given.signal or "TERM")
    await job.signal(number)
    name = signal.Signals(number).name
    text = f'{name} sent to job {job.id}; see with job(action="wait", job="{job.id}", wait=5) whether it ended'
    return answer(text, {"box": box.id, "job": job.id, "signal": number})


def _signal_number(name: str) -> int:
    plain = name.strip().upper().removeprefix("SIG")
    try:
        return signal.Signals(int(plain)) if plain.isascii() and plain.isdigit() else signal.Signals[f"SIG{plain}"]
    except (KeyError, ValueError):
        raise Invalid(f"there is no signal {name[:20]!r}", op="job", remedy="TERM, INT, KILL, HUP, USR1, …") from None


async def _wait(call: Call, box: Box, job: Job, given: JobArguments) -> ToolResult:
    seconds = WAIT_SECONDS if given.wait is None else given.wait
    try:
        result = await call.with_progress(job.wait(seconds), f"waiting for {job.id}", seconds)
    except Timeout:
        info = await job.info()
        if info.state is JobState.RUNNING:
            text = f"job {job.id} still runs after {seconds:g} s more; it goes on. Wait again, read, or signal it."
            return answer(text, {"box": box.id, "job": job.id, **_facts(info)})
        result = await job.wait(seconds)
    text, structured = render(result, len(result.stdout_bytes))
    if result.stdout_total > call.tools.output_bytes or result.stderr_total > call.tools.output_bytes:
        text, structured = await _head_and_tail(call, job, result.but(stdout_bytes=b"", stderr_bytes=b""))
    return answer(text, {"box": box.id, "job": job.id, "state": "exited", **structured}, *result.notes)


async def _head_and_tail(call: Call, job: Job, result: Result) -> tuple[str, dict[str, Any]]:
    """Return the result with head and tail of its output, cut as for `exec`."""
    kept = call.tools.output_bytes
    parts: dict[str, bytes] = {}
    for stream, total in (("stdout", result.stdout_total), ("stderr", result.stderr_total)):
        if total <= kept:
            parts[stream] = await _range(job, stream, 0, total)
        else:
            head = kept * 3 // 5
            parts[stream] = await _range(job, stream, 0, head) + await _range(job, stream, total - kept + head, total)
    return render(result.but(stdout_bytes=parts["stdout"], stderr_bytes=parts["stderr"]), kept)


async def _range(job: Job, stream: str, start: int, end: int) -> bytes:
    data = bytearray()
    while start < end:
        chunk = await job.read(start, stream=stream, limit=end - start)
        if not chunk.data:
            break
        data += chunk.data[: max(0, end - chunk.cursor + len(chunk.data))]
        start = chunk.cursor
    return bytes(data)


async def _list(box: Box) -> ToolResult:
    jobs = await box.jobs()
    lines = [_line(info) for info in jobs]
    text = "\n".join(lines) if lines else "no jobs"
    return answer(text, {"box": box.id, "jobs": [{"job": info.id, **_facts(info)} for info in jobs]})


def _line(info: JobInfo) -> str:
    name = f" ({info.name})" if info.name else ""
    command = info.command[-1] if len(info.command) == 3 and info.command[1] == "-c" else " ".join(info.command)
    running = info.state is JobState.RUNNING
    bound = f" (killed {info.timeout_sec:g} s after its start)" if running and info.timeout_sec else ""
    return f"{info.id}{name}: {_state(info)}{bound}: {shorten(command, 100)}"


def _state(info: JobInfo) -> str:
    if info.state is JobState.RUNNING:
        return "running"
    if info.verdict is not None and info.verdict.message:
        return f"ended: {info.verdict.message}"
    return f"ended with exit code {info.exit_code}" if info.signal is None else f"ended by signal {info.signal}"


def _facts(info: JobInfo) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "state": str(info.state), "name": info.name, "exit_code": info.exit_code, "signal": info.signal,
        "stdout_total": info.stdout_total, "stderr_total": info.stderr_total, "lost": info.dropped,
        "stdout_handle": handle_of(info.id, "stdout"),
    }  # fmt: skip
    if info.verdict is not None:
        facts["verdict"] = verdict_facts(info.verdict)
    return facts
