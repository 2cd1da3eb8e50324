"""Commands that show boxes, and how a box is shown: its details, clocks and lease, for people and as JSON."""

import argparse
import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

from hutch.cli.connect import open_hutch
from hutch.cli.live_output import REDRAW_SECONDS, LiveTable
from hutch.cli.options import add_box
from hutch.cli.output import columns, emit_json, printable
from hutch.cli.parsers import CliCommand
from hutch.errors import HeldElsewhere
from hutch.model.boxes import BoxInfo, State
from hutch.model.results import JobInfo
from hutch.model.units import format_seconds

if TYPE_CHECKING:
    from hutch.api import Hutch

SHORT_ID = 12
NONE = "–"
HEADER = (
    "ID", "NAME", "STATE", "PROFILE", "IMAGE", "CPUS", "MEMORY", "NET", "AGE", "IDLE", "LEFT", "HOLDER",
)  # fmt: skip
JOB_HEADER = ("JOB", "NAME", "STATE", "STARTED", "OUTPUT", "COMMAND")
SPARE = ("HOLDER", "CPUS", "MEMORY", "IMAGE", "NET")
"""Columns that a narrow terminal does without; `hutch box show` has them."""


class List(CliCommand):
    """Show the boxes there are. Listing does not use them: no clock is reset."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--watch", action="store_true", help="go on, and show every change (Ctrl-C ends it)")
        parser.add_argument("--names", action="store_true", help="only names and ids, one on each line")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            if arguments.watch:
                await _watch(hutch, as_json=arguments.json)
            boxes = await _all_facts(hutch)
            if arguments.json:
                emit_json({"boxes": boxes})
            elif arguments.names:
                for box in boxes:
                    print(f"{box['name']}\n{box['id']}" if box["name"] else box["id"])
            else:
                print("\n".join(_table(boxes)))
        return 0


async def _all_facts(hutch: "Hutch") -> list[dict[str, Any]]:
    return [box_facts(record) for record in await hutch.boxes()]


def _table(boxes: list[dict[str, Any]]) -> list[str]:
    if not boxes:
        return ["there is no box; `hutch box create` makes one"]
    return columns(HEADER, [_row(box) for box in boxes], SPARE)


async def _watch(hutch: "Hutch", *, as_json: bool) -> None:
    """Redraw the table on a terminal; elsewhere print a line, or an object, whenever a box has changed."""
    live = os.isatty(1) and not as_json
    table, before = LiveTable(), dict[str, str]()
    while True:
        boxes = await _all_facts(hutch)
        if live:
            table.draw(_table(boxes))
        else:
            before = _show_changes(boxes, before, as_json=as_json)
        await asyncio.sleep(REDRAW_SECONDS)


def _show_changes(boxes: list[dict[str, Any]], before: dict[str, str], *, as_json: bool) -> dict[str, str]:
    now = {box["id"]: box["state"] for box in boxes}
    for box_id, state in [*now.items(), *((box_id, "gone") for box_id in before if box_id not in now)]:
        if before.get(box_id) == state:
            continue
        if as_json:
            emit_json({"id": box_id, "state": state})
        else:
            print(f"{box_id} {state}", flush=True)
    return now


class Show(CliCommand):
    """Show everything about one box: what it is, its limits, clocks, lease, jobs, and what policy adjusted."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_box(parser)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            record = await hutch.find(arguments.box)
            box = box_facts(record)
            jobs: tuple[JobInfo, ...] | None = None
            if record.state is State.RUNNING:  # a paused box stays paused
                try:
                    jobs = await (await hutch.observe(record.id)).jobs()
                except HeldElsewhere:
                    jobs = None
        if arguments.json:
            emit_json({**box, "jobs": None if jobs is None else [job.to_plain() for job in jobs]})
            return 0
        print("\n".join(_lines(box)))
        if jobs:
            print("\n".join(["", *columns(JOB_HEADER, [job_row(job) for job in jobs])]))
        elif jobs is None and record.state is State.RUNNING:
            print("jobs:       only the process that has the box in use can tell")
        return 0


# --- how a box is shown ---------------------------------------------------------------------------------------------


def box_facts(box: BoxInfo) -> dict[str, Any]:
    """Collect what is shown of a box, with its clocks and its lease."""
    now = time.time()
    spec = box.spec
    return {
        "id": box.id,
        "name": box.name,
        "state": str(box.state),
        "reason": box.reason,
        "owner": box.owner,
        "profile": spec.profile,
        "provider": box.provider,
        "image": spec.image,
        "network": str(spec.network),
        "limits": spec.limits.to_plain(),
        "user": spec.user,
        "workdir": spec.workdir,
        "mount_path": "/workspace",
        "workspace": spec.workspace.to_plain(),
        "mounts": [mount.to_plain() for mount in spec.mounts],
        "ports": list(spec.ports),
        "retention": str(spec.retention),
        "created_at": box.created_at,
        "last_used_at": box.used_at,
        "idle_seconds": None if box.elsewhere else round(max(0.0, now - box.used_at), 1),
        "idle_timeout_sec": spec.idle_timeout_sec,
        "ttl_sec": spec.ttl_sec,
        "kept_without_use_sec": box.grace_sec,
        "remaining_seconds": None if box.remaining_sec is None else round(box.remaining_sec, 1),
        "in_use_by_a_process": box.elsewhere,
        "lease": lease_facts(box, now),
        "adjustments": [str(adjustment) for adjustment in spec.adjustments],
        "labels": dict(spec.labels),
    }


def lease_facts(box: BoxInfo, now: float) -> dict[str, Any] | None:
    """Collect what is shown of the lease; None if nobody holds the box."""
    held = box.lease
    if held is None or not held.live(now):
        return None
    left = held.expires_in_sec(now)
    return {
        "holder": held.holder,
        "acquired_at": held.acquired_at,
        "lease_expires_at": held.expires_at or None,
        "lease_expires_in_seconds": None if left is None else round(left, 1),
        "auto_renew_interval_seconds": held.auto_renew_sec,
    }


def _row(box: dict[str, Any]) -> tuple[str, ...]:
    """Make one line of the table from `box_facts`."""
    return (
        box["id"][:SHORT_ID],
        box["name"] or NONE,
        box["state"],
        box["profile"],
        printable(box["image"]),
        f"{box['limits']['cpus']:g}",
        f"{box['limits']['memory_mb']} MB",
        box["network"],
        format_seconds(time.time() - box["created_at"]),
        "in use" if box["in_use_by_a_process"] else format_seconds(box["idle_seconds"]),
        NONE if box["remaining_seconds"] is None else format_seconds(box["remaining_seconds"]),
        printable(box["lease"]["holder"]) if box["lease"] else NONE,
    )


def _lines(box: dict[str, Any]) -> list[str]:
    """Write `box_facts` with one fact on each line."""
    limits, workspace = box["limits"], box["workspace"]
    facts = {
        "id": box["id"],
        "name": box["name"] or NONE,
        "state": box["state"] + (f" ({printable(box['reason'])})" if box["reason"] else ""),
        "profile": box["profile"],
        "backend": box["provider"],
        "image": printable(box["image"]),
        "cpus": f"{limits['cpus']:g}",
        "memory": f"{limits['memory_mb']} MB",
        "disk": f"{limits['disk_mb']} MB",
        "pids": str(limits["pids"]),
        "timeout": _timeouts(limits),
        "network": box["network"],
        "workspace": f"{box['mount_path']} ({printable(workspace['source'])}, {workspace['mode']})",
        "retention": box["retention"],
        "created": _ago(box["created_at"]),
        "last used": "in use by a live process" if box["in_use_by_a_process"] else _ago(box["last_used_at"]),
        "remaining": _remaining(box),
        "lease": lease_text(box["lease"]),
    }
    lines = [f"{name + ':':<11} {text}" for name, text in facts.items()]
    lines += [
        f"{'mount:':<11} {printable(m['source'])} at {printable(m['target'])} ({m['mode']})" for m in box["mounts"]
    ]
    lines += [f"{'label:':<11} {printable(name)}={printable(value)}" for name, value in box["labels"].items()]
    return lines + [f"{'adjusted:':<11} {printable(text)}" for text in box["adjustments"]]


def lease_text(held: dict[str, Any] | None) -> str:
    if held is None:
        return "held by nobody"
    left = held["lease_expires_in_seconds"]
    if left is None:
        return f"held by {printable(held['holder'])} until it is released"
    every = format_seconds(held["auto_renew_interval_seconds"])
    return f"held by {printable(held['holder'])}, ends in {format_seconds(left)}; renewed every {every} while in use"


def job_row(job: JobInfo) -> tuple[str, ...]:
    command = printable(" ".join(job.command))
    return (
        job.id,
        printable(job.name) or NONE,
        _ended(job),
        _ago(job.started_at),
        f"{job.stdout_total + job.stderr_total} B",
        command if len(command) <= 60 else command[:59] + "…",
    )


def _ended(job: JobInfo) -> str:
    if job.signal is not None:
        return f"signal {job.signal}"
    return f"exit {job.exit_code}" if job.exit_code is not None else str(job.state)


def _remaining(box: dict[str, Any]) -> str:
    left = box["remaining_seconds"]
    if left is None:
        return "no end by time"
    after = "its processes end, its files stay" if box["retention"] == "persistent" else "it ends"
    return f"{format_seconds(left)}, then {after}" + ("" if box["in_use_by_a_process"] else " unless it is used")


def _timeouts(limits: dict[str, Any]) -> str:
    most = limits["max_timeout_sec"]
    return f"{format_seconds(limits['timeout_sec'])}, at most {format_seconds(most) if most else 'any'}"


def _ago(at: float) -> str:
    return f"{format_seconds(max(0.0, time.time() - at))} ago"
