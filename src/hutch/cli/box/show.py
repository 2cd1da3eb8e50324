"""Show everything about one box: what it is, its limits, clocks, lease, jobs, and what policy adjusted."""

import argparse
import asyncio

from hutch.cli.box_text import JOB_HEADER, details, job_row, lines
from hutch.cli.keeper_choice import add_box, visit
from hutch.cli.output import columns, emit_json
from hutch.errors import HeldElsewhere
from hutch.model.results import JobInfo
from hutch.model.state import State


def add(parser: argparse.ArgumentParser) -> None:
    add_box(parser)


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_show(arguments))


async def _show(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        record = await hutch.find(arguments.box)
        box = details(record)
        jobs: tuple[JobInfo, ...] | None = None
        if record.state is State.RUNNING:  # a paused box stays asleep
            try:
                jobs = await (await hutch.observe(record.id)).jobs()
            except HeldElsewhere:
                jobs = None
    if arguments.json:
        emit_json({**box, "jobs": None if jobs is None else [job.to_plain() for job in jobs]})
        return 0
    print("\n".join(lines(box)))
    if jobs:
        print("\n".join(["", *columns(JOB_HEADER, [job_row(job) for job in jobs])]))
    elif jobs is None and record.state is State.RUNNING:
        print("jobs:       only the process that has the box in use can tell")
    return 0
