"""The machine as a box sees it: files over /proc entries that show the box's limits instead of the host's size.

`free`, `lscpu`, `nproc`, Python's `os.cpu_count()` and Node's `os.cpus()` read them. They show limits, not use: what is
free is what the limit allows. Standard library only.
"""

from functools import cache
from math import ceil

VIEWED = ("cpuinfo", "meminfo", "stat")
"""Entries of /proc that show a box's limits. They belong to its user, whose guest writes them anew with new limits."""
_DETAILED_PROCESSORS = 8
"""Further processors are listed without their long lines, so that the text of a large machine stays small."""
_LONG_LINES = ("flags", "features", "bugs", "vmx flags")


def visible_cpus(cpus: float) -> int:
    """Return the number of processors that a box with this limit sees: a part of one counts as one."""
    return max(1, min(ceil(cpus), len(_host_processors())))


def machine_view(cpus: float, memory_mb: int) -> tuple[tuple[str, str], ...]:
    """Return the names in `VIEWED` with their content for these limits."""
    count = visible_cpus(cpus)
    return ("cpuinfo", _cpuinfo(count)), ("meminfo", _meminfo(memory_mb << 10)), ("stat", _stat(count))


def _meminfo(total_kb: int) -> str:
    values = {
        "MemTotal": total_kb, "MemFree": total_kb, "MemAvailable": total_kb, "Buffers": 0, "Cached": 0,
        "SwapCached": 0, "Active": 0, "Inactive": 0, "SwapTotal": 0, "SwapFree": 0, "Dirty": 0, "Writeback": 0,
        "AnonPages": 0, "Mapped": 0, "Shmem": 0, "Slab": 0, "SReclaimable": 0, "SUnreclaim": 0,
    }  # fmt: skip
    return "".join(f"{name + ':':<15} {value:>8} kB\n" for name, value in values.items())


def _cpuinfo(count: int) -> str:
    blocks = _host_processors()[:count]
    short = [
        "\n".join(line for line in block.split("\n") if not line.lower().startswith(_LONG_LINES))
        for block in blocks[_DETAILED_PROCESSORS:]
    ]
    return "".join(f"{block}\n\n" for block in (*blocks[:_DETAILED_PROCESSORS], *short))


def _stat(count: int) -> str:
    """Return /proc/stat with `count` processors, by which the C library counts them where there is no /sys."""
    idle = " 0" * 10
    names = ("cpu ", *(f"cpu{number}" for number in range(count)))
    rows = [f"{name}{idle}" for name in names]
    return "\n".join([*rows, "intr 0", "ctxt 0", _boot_time(), "processes 1", "procs_running 1", "procs_blocked 0", ""])


@cache
def _host_processors() -> list[str]:
    blocks = _read("/proc/cpuinfo").split("\n\n")
    return [block for block in blocks if block.startswith("processor")] or ["processor\t: 0"]


@cache
def _boot_time() -> str:
    """Return the line that `ps` computes start times from."""
    return next((line for line in _read("/proc/stat").splitlines() if line.startswith("btime ")), "btime 0")


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
