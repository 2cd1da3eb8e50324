"""`box_get_storage_analysis`: how much the sessions of a workspace hold, measured from inside their boxes."""

import asyncio
from typing import Any

from hutch.errors import HutchError
from hutch.keeper.access.handles import BoxHandle

MEASURE_SECONDS = 20.0
ROOTS = {"workspace": "/workspace", "session_temp": "/tmp"}
DETAILS = {"mcp": "/workspace/.mcp", "inbox": "/workspace/inbox", "outbox": "/workspace/outbox"}
_SCRIPT = """
for place; do
  if [ -e "$place" ]; then
    set -- $(du -sk "$place" 2>/dev/null)
    printf '%s\\t%s\\t%s\\n' "$place" "${1:-0}" "$(find "$place" -type f 2>/dev/null | wc -l)"
  fi
done
"""


async def measure(boxes: list[BoxHandle]) -> list[dict[str, Any]]:
    """Measure every directory once. All sessions show the same workspace, so one of them measures it."""
    measured = await asyncio.gather(*(_measure(box) for box in boxes))
    first = measured[0] if measured else {}
    rows = [_row(key, path, first.get(path), "root") for key, path in (("workspace", ROOTS["workspace"]),)]
    rows += [_row(key, path, first.get(path), "detail") | {"parent_key": "workspace"} for key, path in DETAILS.items()]
    temporary = [each[ROOTS["session_temp"]] for each in measured if ROOTS["session_temp"] in each]
    summed = (sum(size for size, _ in temporary), sum(count for _, count in temporary)) if temporary else None
    return [*rows, _row("session_temp", ROOTS["session_temp"], summed, "root")]


async def _measure(box: BoxHandle) -> dict[str, tuple[int, int]]:
    """Return bytes and files of each directory that exists; nothing if the box does not answer in time."""
    places = [*ROOTS.values(), *DETAILS.values()]
    try:
        result = await box.exec(["sh", "-c", _SCRIPT, "sh", *places], timeout=MEASURE_SECONDS)
    except HutchError:
        return {}
    found: dict[str, tuple[int, int]] = {}
    for line in result.stdout.splitlines():
        path, _, rest = line.partition("\t")
        size, _, count = rest.partition("\t")
        # A box can print anything here: only numbers of the known directories count.
        if path in places and size.isdecimal() and count.isdecimal() and len(rest) < 40:
            found[path] = (int(size) * 1024, int(count))
    return found


def _row(key: str, path: str, found: tuple[int, int] | None, kind: str) -> dict[str, Any]:
    size, count = found or (0, 0)
    return {
        "key": key, "path": path, "kind": kind, "exists": found is not None, "size_bytes": size, "file_count": count,
        "error_count": 0, "scope": "sandbox_sessions",
    }  # fmt: skip
