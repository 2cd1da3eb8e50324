"""Commands that run programs in a box: as commands that we wait for, and as jobs that go on."""

import argparse
import asyncio
import os
from collections.abc import Sequence
from contextlib import aclosing, nullcontext, suppress
from typing import Any

from hutch.api import Box, Job
from hutch.cli import stdio
from hutch.cli.attach import Attachment, Signals
from hutch.cli.commands.box.show import JOB_HEADER, job_row
from hutch.cli.commands.run import EndedCommand, clamp_notes, report_end, run_attached, run_to_end
from hutch.cli.connect import Attached, attach_box, joined, open_hutch
from hutch.cli.options import add_box, duration, variable
from hutch.cli.output import columns, emit_json, note
from hutch.cli.parsers import CliCommand
from hutch.errors import Conflict, Invalid, NotFound
from hutch.model.results import JobInfo, JobState, Result
from hutch.policy.effective import clamp_timeout
from hutch.providers.base import Command

CHUNK = 1 << 20
DETACH_KEY = b"\x1d"
"""Ctrl-], telnet's key for this."""
REPLAYED_BYTES = 4096
"""Bytes of earlier output that are shown first, so that a prompt is visible."""


class Exec(CliCommand):
    """Run a command in a box: its output, its exit code and our signals as if it ran here. The box stays.

    Options end at the box; what follows it is the command. A string for a shell is `hutch box exec BOX -- sh -c '…'`.
    """

    epilog = """\
examples:
  hutch box exec dev -- ls -l
  hutch box exec -t dev bash                       a shell on this terminal, without a timeout
  hutch box exec --detach dev -- sh -c 'make all'  prints the job's id; hutch box logs --follow dev
exit codes are those of `hutch run`.
"""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--timeout", type=duration, metavar="TIME", help="until it is killed: 90, 5m, 1h30m")
        parser.add_argument(
            "--env", "-e", action="append", default=[], metavar="K=V", help="set a variable; K: as here"
        )
        parser.add_argument("--cwd", "-w", metavar="DIR", help="where it starts (default: the box's workdir)")
        parser.add_argument("--user", "-u", help="user (default), root (of the box) or a number")
        parser.add_argument(
            "-i", "--stdin", action="store_true", help="feed input from a terminal too; other input always is"
        )
        parser.add_argument("-t", "--tty", action="store_true", help="give it a terminal")
        parser.add_argument("-d", "--detach", action="store_true", help="start it as a job, print the job's id, and go")
        parser.add_argument("--name", default="", help="a name for the job")
        add_box(parser)
        parser.add_argument(
            "command", nargs=argparse.REMAINDER, metavar="[--] COMMAND ...", help="program and arguments"
        )

    async def run_async(self, arguments: argparse.Namespace) -> int:
        argv = tuple(arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command)
        if not argv:
            remedy = "for example: hutch box exec BOX -- echo hello"
            raise Invalid("there is no command to run", op="exec", remedy=remedy)
        if arguments.json and arguments.tty and not arguments.detach:
            raise Invalid("--json and -t exclude each other", op="exec", remedy="leave one out")
        order = Command(
            command=argv, cwd=arguments.cwd, env=dict(variable(text) for text in arguments.env), user=arguments.user,
            name=arguments.name, pty=arguments.tty,
        )  # fmt: skip
        return await (_start_job(arguments, order) if arguments.detach else _run_to_end(arguments, order))


async def _start_job(arguments: argparse.Namespace, order: Command) -> int:
    """Start a job; it has no timeout but the one it is given."""
    async with open_hutch(arguments) as hutch:
        box = await attach_box(hutch, arguments)
        job = await box.start(
            order.command, cwd=order.cwd, env=order.env, timeout=arguments.timeout or None, user=order.user,
            pty=order.pty, name=order.name,
        )  # fmt: skip
        info = await job.info()
    if arguments.json:
        emit_json({"box": box.id, "job": info.to_plain()})
    else:
        print(job.id)
    return 0


async def _run_to_end(arguments: argparse.Namespace, order: Command) -> int:
    async def work(attachment: Attachment) -> EndedCommand:
        async with open_hutch(arguments) as hutch:
            box = await attach_box(hutch, arguments)
            timed, notes = _with_timeout(order, arguments, box)
            ended = await run_to_end(arguments, attachment, box, timed, notes, terminal=arguments.tty)
            await box.forget(ended.result.job_id)  # its output has been read, so it does not stay among the jobs
            return ended

    return await run_attached(arguments, work, terminal=arguments.tty)


def _with_timeout(order: Command, arguments: argparse.Namespace, box: Box) -> tuple[Command, list[str]]:
    """Apply the profile's timeout, except on a terminal, where the person who sits there ends the command."""
    if arguments.timeout == 0 or (arguments.tty and arguments.timeout is None):
        return order, []
    seconds, clamped = clamp_timeout(arguments.timeout, box.spec.limits)
    return order.but(timeout_sec=seconds or None), clamp_notes(clamped)


class Jobs(CliCommand):
    """Show the jobs of a box: those that run, and those that ended and whose output can still be read."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_box(parser)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            record = await hutch.find(arguments.box)
            jobs = await (await hutch.observe(record.id)).jobs()
        if arguments.json:
            emit_json({"box": record.id, "jobs": [job.to_plain() for job in jobs]})
        else:
            print("\n".join(columns(JOB_HEADER, [job_row(job) for job in jobs]) if jobs else ["there is no job"]))
        return 0


def _add_job(parser: argparse.ArgumentParser) -> None:
    add_box(parser)
    parser.add_argument("job", nargs="?", metavar="JOB", help="its id or name (default: the job started last)")


def _find_job(jobs: Sequence[JobInfo], text: str | None) -> JobInfo:
    """Find a job by id or name; without one, the last that runs, else the last that ran."""
    if text is None:
        if not jobs:
            raise NotFound("the box has no job", remedy="start one: hutch box exec --detach BOX -- COMMAND")
        running = [job for job in jobs if job.state is JobState.RUNNING]
        return max(running or jobs, key=lambda job: job.started_at)
    by_name = [job for job in jobs if text == job.name]
    found = [job for job in jobs if text == job.id] or by_name
    if len(found) == 1:
        return found[0]
    if found:
        raise Invalid(f"{len(found)} jobs are called {text!r}", remedy=f"use an id: {', '.join(j.id for j in found)}")
    raise NotFound(f"no job {text}", remedy="`hutch box jobs BOX` shows those there are")


class Logs(CliCommand):
    """Show what a job has written, from its beginning; an earlier command may have started it."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
        parser.add_argument("--stderr", action="store_true", help="only its error output, on standard output")
        _add_job(parser)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        streams = ("stderr",) if arguments.stderr else ("stdout", "stderr")
        async with open_hutch(arguments) as hutch:
            box = await hutch.observe((await hutch.find(arguments.box)).id)
            info = _find_job(await box.jobs(), arguments.job)
            job = await box.job(info.id)
            if arguments.follow:
                await _follow(job, only_stderr=arguments.stderr, as_json=arguments.json)
                return 0
            output = {name: await _read_all(job, name) for name in streams}
        if arguments.json:
            texts = {name: data.decode("utf-8", "replace") for name, data in output.items()}
            emit_json({"job": info.to_plain(), **texts})
            return 0
        if info.dropped:
            note(f"{info.dropped} bytes of its output were past every bound and are lost")
        for name, data in output.items():
            await _write(name, data, only_stderr=arguments.stderr)
        return 0


async def _read_all(job: Job, stream: str) -> bytes:
    """Read what the stream holds now."""
    parts, cursor = [], 0
    while True:
        chunk = await job.read(cursor, stream=stream, limit=CHUNK)
        parts.append(chunk.data)
        if chunk.eof or not chunk.data:
            return b"".join(parts)
        cursor = chunk.cursor


async def _follow(job: Job, *, only_stderr: bool, as_json: bool) -> None:
    async with aclosing(job.follow()) as output:  # type: ignore[type-var]
        async for name, data in output:
            if only_stderr and name != "stderr":
                continue
            if as_json:
                emit_json({"stream": name, "text": data.decode("utf-8", "replace")})
            else:
                await _write(name, data, only_stderr=only_stderr)


async def _write(stream: str, data: bytes, *, only_stderr: bool) -> None:
    sink = stdio.Sink(2 if stream == "stderr" and not only_stderr else 1)
    try:
        await sink.write(data)
    finally:
        sink.close()


class Attach(CliCommand):
    """Connect this terminal to a job: keys are its input, its output is shown. Ctrl-] leaves; the job keeps running."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        _add_job(parser)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        if arguments.json:
            raise Invalid("attach is for people", op="attach", remedy="programs read with `hutch box logs --json`")
        with Signals() as signals:
            attachment = Attachment(signals, stdin=0)
            try:
                async with open_hutch(arguments) as hutch:
                    box = await attach_box(hutch, arguments)
                    info = _find_job(await box.jobs(), arguments.job)
                    async with joined(box, info.id) as process:
                        result = await _stay_attached(attachment, process, info)
            except asyncio.CancelledError:
                if signals.ended_by is None:
                    raise
                return 128 + signals.ended_by
        if result is None:
            note(f"left job {info.id}; it goes on")
            return 0
        return report_end(result, attachment)


async def _stay_attached(attachment: Attachment, process: Attached, info: JobInfo) -> Result | None:
    """Stay until the job ends; return None if the detach key came first."""
    attachment.signals.attach(process)
    on_terminal = info.pty and os.isatty(0)
    if on_terminal:
        await process.resize(*stdio.terminal_size(0))
        attachment.signals.forward_size(process)
    with stdio.raw_terminal(0) if on_terminal else nullcontext():
        feeding = asyncio.create_task(_feed(process))
        start = {
            "stdout": max(0, info.stdout_total - REPLAYED_BYTES), "stderr": max(0, info.stderr_total - REPLAYED_BYTES)
        }  # fmt: skip
        showing = asyncio.create_task(attachment.show(process, **start))
        try:
            await asyncio.wait({feeding, showing}, return_when=asyncio.FIRST_COMPLETED)
            if feeding.done() and feeding.result():
                return None
            await showing
            return await process.wait()
        finally:
            await _cancel(feeding, showing)


async def _feed(process: Attached) -> bool:
    """Copy our input to the job's input; return True when the detach key came."""
    with suppress(Conflict):  # it has ended or closed its input: nobody reads the rest
        async for data in stdio.read_pieces(0):
            typed, key, _ = data.partition(DETACH_KEY) if os.isatty(0) else (data, b"", b"")
            if typed:
                await process.write(typed)
            if key:
                return True
        await process.close_stdin()
    return False


async def _cancel(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
