"""Connect this terminal to a job: keys are its input, what it writes is shown. Ctrl-] leaves, and the job goes on."""

import argparse
import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any

from hutch.api import Box
from hutch.cli import streams, terminal
from hutch.cli.attach import Attached, Attachment, Signals
from hutch.cli.box.jobs import add_job, chosen
from hutch.cli.keeper_choice import attach, visit
from hutch.cli.output import note
from hutch.cli.run import ending
from hutch.errors import Conflict, Invalid
from hutch.keeper.access.handles import BoxHandle
from hutch.model.results import JobInfo, Result

LEAVE = b"\x1d"
"""Ctrl-], telnet's key for this."""
SEEN_AGAIN = 4096
"""Bytes of earlier output that are shown first, so that a prompt is there."""


def add(parser: argparse.ArgumentParser) -> None:
    add_job(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.json:
        raise Invalid("attach is for people", op="attach", remedy="programs read with `hutch box logs --json`")
    return asyncio.run(_attach(arguments))


async def _attach(arguments: argparse.Namespace) -> int:
    with Signals() as signals:
        attachment = Attachment(signals, stdin=0)
        try:
            async with visit(arguments) as hutch:
                box = await attach(hutch, arguments)
                info = chosen(await box.jobs(), arguments.job)
                async with _joined(box, info.id) as process:
                    result = await _stay(attachment, process, info)
        except asyncio.CancelledError:
            if signals.ended_by is None:
                raise
            return 128 + signals.ended_by
    if result is None:
        note(f"left job {info.id}; it goes on")
        return 0
    return ending(result, attachment)


@asynccontextmanager
async def _joined(box: Box, job_id: str) -> AsyncIterator[Attached]:
    """A job of a box that this process keeps has one receipt for all that is typed."""
    if not isinstance(box, BoxHandle):
        yield await box.job(job_id)
        return
    instance = await box.begin()
    try:
        async with box.operation("job.follow", {"job": job_id, "input": True}):
            yield await instance.job(job_id)
    finally:
        box.end()


async def _stay(attachment: Attachment, process: Attached, info: JobInfo) -> Result | None:
    """Until the job ends; None if the leaving key came first."""
    attachment.signals.attach(process)
    on_terminal = info.pty and os.isatty(0)
    if on_terminal:
        await process.resize(*terminal.size(0))
        attachment.signals.watch_size(process)
    with terminal.raw(0) if on_terminal else nullcontext():
        feeding = asyncio.create_task(_feed(process))
        start = {"stdout": max(0, info.stdout_total - SEEN_AGAIN), "stderr": max(0, info.stderr_total - SEEN_AGAIN)}
        showing = asyncio.create_task(attachment.show(process, **start))
        try:
            await asyncio.wait({feeding, showing}, return_when=asyncio.FIRST_COMPLETED)
            if feeding.done() and feeding.result():
                return None
            await showing
            return await process.wait()
        finally:
            await _ended(feeding, showing)


async def _feed(process: Attached) -> bool:
    """Our input to its input; True: the leaving key came."""
    with suppress(Conflict):  # it has ended or closed its input: the rest of ours is nobody's
        async for data in streams.pieces(0):
            typed, key, _ = data.partition(LEAVE) if os.isatty(0) else (data, b"", b"")
            if typed:
                await process.write(typed)
            if key:
                return True
        await process.close_stdin()
    return False


async def _ended(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
