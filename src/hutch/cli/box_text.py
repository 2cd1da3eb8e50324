"""What is told of a box, for people and as JSON: B13's details, the clocks and the lease (P6)."""

import time
from typing import Any

from hutch.cli.output import printable
from hutch.model.boxes import BoxInfo
from hutch.model.durations import shown
from hutch.model.results import JobInfo

SHORT_ID = 12
NONE = "–"
HEADER = (
    "ID", "NAME", "STATE", "PROFILE", "IMAGE", "CPUS", "MEMORY", "NET", "AGE", "IDLE", "LEFT", "HOLDER",
)  # fmt: skip


def details(box: BoxInfo) -> dict[str, Any]:
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
        "lease": lease(box, now),
        "adjustments": [str(adjustment) for adjustment in spec.adjustments],
        "labels": dict(spec.labels),
    }


def lease(box: BoxInfo, now: float) -> dict[str, Any] | None:
    """None: nobody holds the box."""
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


def row(box: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table, of what `details` told."""
    return (
        box["id"][:SHORT_ID],
        box["name"] or NONE,
        box["state"],
        box["profile"],
        printable(box["image"]),
        f"{box['limits']['cpus']:g}",
        f"{box['limits']['memory_mb']} MB",
        box["network"],
        shown(time.time() - box["created_at"]),
        "in use" if box["in_use_by_a_process"] else shown(box["idle_seconds"]),
        NONE if box["remaining_seconds"] is None else shown(box["remaining_seconds"]),
        printable(box["lease"]["holder"]) if box["lease"] else NONE,
    )


def lines(box: dict[str, Any]) -> list[str]:
    """The same, one fact on each line."""
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
    told = [f"{name + ':':<11} {text}" for name, text in facts.items()]
    told += [
        f"{'mount:':<11} {printable(m['source'])} at {printable(m['target'])} ({m['mode']})" for m in box["mounts"]
    ]
    told += [f"{'label:':<11} {printable(name)}={printable(value)}" for name, value in box["labels"].items()]
    return told + [f"{'adjusted:':<11} {printable(text)}" for text in box["adjustments"]]


def lease_text(held: dict[str, Any] | None) -> str:
    if held is None:
        return "held by nobody"
    left = held["lease_expires_in_seconds"]
    if left is None:
        return f"held by {printable(held['holder'])} until it is released"
    every = shown(held["auto_renew_interval_seconds"])
    return f"held by {printable(held['holder'])}, ends in {shown(left)}; renewed every {every} while in use"


JOB_HEADER = ("JOB", "NAME", "STATE", "STARTED", "OUTPUT", "COMMAND")


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
    if job.exit_code is not None:
        return f"exit {job.exit_code}"
    return f"signal {job.signal}" if job.signal else str(job.state)


def _remaining(box: dict[str, Any]) -> str:
    left = box["remaining_seconds"]
    if left is None:
        return "no end by time"
    after = "its processes end, its files stay" if box["retention"] == "persistent" else "it ends"
    return f"{shown(left)}, then {after}" + ("" if box["in_use_by_a_process"] else " unless it is used")


def _timeouts(limits: dict[str, Any]) -> str:
    most = limits["max_timeout_sec"]
    return f"{shown(limits['timeout_sec'])}, at most {shown(most) if most else 'any'}"


def _ago(at: float) -> str:
    return f"{shown(max(0.0, time.time() - at))} ago"
