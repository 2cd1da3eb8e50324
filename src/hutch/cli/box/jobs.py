"""Show the jobs of a box: those that run, and those that ended and whose output can still be read."""

import argparse
import asyncio
from collections.abc import Sequence

from hutch.cli.box_text import JOB_HEADER, job_row
from hutch.cli.keeper_choice import add_box, visit
from hutch.cli.output import columns, emit_json
from hutch.errors import Invalid, NotFound
from hutch.model.results import JobInfo, JobState


def add(parser: argparse.ArgumentParser) -> None:
    add_box(parser)


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_jobs(arguments))


async def _jobs(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        record = await hutch.find(arguments.box)
        jobs = await (await hutch.observe(record.id)).jobs()
    if arguments.json:
        emit_json({"box": record.id, "jobs": [job.to_plain() for job in jobs]})
    else:
        print("\n".join(columns(JOB_HEADER, [job_row(job) for job in jobs]) if jobs else ["there is no job"]))
    return 0


def add_job(parser: argparse.ArgumentParser) -> None:
    add_box(parser)
    parser.add_argument("job", nargs="?", metavar="JOB", help="its id or name (default: the job started last)")


def chosen(jobs: Sequence[JobInfo], text: str | None) -> JobInfo:
    """The job of that id or name; without one the last that runs, else the last that ran."""
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
