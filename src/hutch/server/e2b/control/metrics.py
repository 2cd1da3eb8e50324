"""Metrics of a sandbox: what it uses now, measured when somebody asks."""

import time
from datetime import UTC, datetime

from hutch.errors import Invalid
from hutch.keeper.access.handles import BoxHandle
from hutch.model.boxes import State
from hutch.model.record import encode_json
from hutch.server.e2b.control.shapes import Metric
from hutch.server.e2b.errors import Answer
from hutch.server.e2b.requests import Request

_MEASURE = "cat /proc/[0-9]*/statm 2>/dev/null; echo; df -Pk /home/user 2>/dev/null || df -Pk /"
"""Prints the memory pages of every process, then the disk of the user's files. It works on every engine."""
_PAGE = 4096
_JSON = (("content-type", "application/json"),)


async def list_metrics(request: Request) -> Answer:
    """Return the present metric, if it lies in the range that was asked for. Earlier ones are not kept."""
    start, end = (_seconds(request, name) for name in ("start", "end"))
    now = int(time.time())
    live = await request.find()
    outside = (start is not None and now < start) or (end is not None and now > end + 1)
    if outside or live.record.state is not State.RUNNING:
        return Answer(200, b"[]", _JSON)
    async with request.using() as box:
        return Answer(200, encode_json([await measure(box, live.record.created_at)]), _JSON)


async def agent_metrics(request: Request) -> Answer:
    """Return the present metric as the agent itself reports it."""
    live = await request.find_running()
    async with request.using() as box:
        now = await measure(box, live.record.created_at)
    return Answer(200, encode_json({
        "ts": now.timestamp_unix, "cpu_count": now.cpu_count, "cpu_used_pct": now.cpu_used_pct,
        "mem_used": now.mem_used, "mem_total": now.mem_total, "mem_cache": now.mem_cache,
        "mem_used_mib": now.mem_used >> 20, "mem_total_mib": now.mem_total >> 20,
        "disk_used": now.disk_used, "disk_total": now.disk_total,
    }), _JSON)  # fmt: skip


async def measure(box: BoxHandle, created_at: float) -> Metric:
    """Measure a running sandbox. Its use of CPUs is the average since its creation."""
    usage, measured = await box.usage(), await box.exec(_MEASURE, timeout=10.0)
    pages, _, disk = measured.stdout.partition("\n\n")
    # The programs are the box's own, so they may print anything.
    resident = sum(_number(fields[1]) for line in pages.splitlines() if len(fields := line.split()) == 7)
    fields = disk.strip().splitlines()[-1].split() if disk.strip() else []
    total_kb, used_kb = (_number(fields[1]), _number(fields[2])) if len(fields) >= 3 else (0, 0)
    limits, now = box.spec.limits, time.time()
    busy = usage.cpu_user_sec + usage.cpu_system_sec
    return Metric(
        timestamp=datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        timestamp_unix=int(now), cpu_count=max(1, round(limits.cpus)),
        cpu_used_pct=round(100 * busy / max(0.001, now - created_at), 2), mem_used=resident * _PAGE,
        mem_total=limits.memory_mb << 20, mem_cache=0, disk_used=used_kb << 10, disk_total=total_kb << 10,
    )  # fmt: skip


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else 0


def _seconds(request: Request, name: str) -> int | None:
    text = request.query.get(name, "")
    if text and not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Invalid(f"{name} is a number of seconds since 1970")
    return int(text) if text else None
