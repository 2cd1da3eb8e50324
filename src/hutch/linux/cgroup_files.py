"""Reads and writes the control files of cgroup v1 and v2.

Every function takes the directory of one group. A kernel refusal is raised as OSError with the file's path.
Standard library only: the spawner imports this.
"""

import errno
import os
import time

_WRITE = os.O_WRONLY | os.O_CLOEXEC
PERIOD_US = 100_000  # of every new group
MIN_QUOTA_US = 1_000  # the kernel refuses less
PIDS_HEADROOM = 8  # for the guest, and for what it needs to report that the limit was met
SOCKETS_FILE = "memory.kmem.tcp.limit_in_bytes"
SOCKETS_SHARE = 8
LEAST_FOR_SOCKETS = 8 << 20

# fact: (file, key in it); "" means that the whole file is the number
FACT_FILES: dict[int, dict[str, tuple[str, bytes]]] = {
    1: {
        # memory.failcnt stays 0 when the OOM killer acts; only this counter shows it (Linux >= 4.13).
        "oom_kills": ("memory.oom_control", b"oom_kill "),
        "pids_hits": ("pids.events", b"max "),
        "throttled": ("cpu.stat", b"nr_throttled "),
        "memory_peak_bytes": ("memory.max_usage_in_bytes", b""),
        "memory_current": ("memory.usage_in_bytes", b""),
        "pids_current": ("pids.current", b""),
    },
    2: {
        "oom_kills": ("memory.events", b"oom_kill "),
        "pids_hits": ("pids.events", b"max "),
        "throttled": ("cpu.stat", b"nr_throttled "),
        "memory_peak_bytes": ("memory.peak", b""),
        "memory_current": ("memory.current", b""),
        "pids_current": ("pids.current", b""),
    },
}
MARKS = {1: {"memory": "memory.limit_in_bytes", "pids": "pids.max", "cpu": "cpu.cfs_quota_us"},
         2: {"memory": "memory.max", "pids": "pids.max", "cpu": "cpu.max"}}  # fmt: skip


def write(path: str, text: str) -> None:
    """One write(2) to a control file. No O_CREAT: a missing file is an error, on any file system."""
    descriptor = os.open(path, _WRITE)
    try:
        os.write(descriptor, text.encode())
    except OSError as error:
        raise OSError(error.errno, f"cannot write {text!r}: {error.strerror}", path) from error
    finally:
        os.close(descriptor)


def read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks = []
        while chunk := os.read(descriptor, 65536):
            chunks.append(chunk)
        return b"".join(chunks)
    finally:
        os.close(descriptor)


def number(content: bytes, key: bytes) -> int | None:
    """The number behind `key` in a flat keyed file, or the file's only number."""
    if key and not content.startswith(key):
        at = content.find(b"\n" + key)
        if at < 0:
            return None
        content = content[at + 1 :]
    return int(content[len(key) :].split(b"\n", 1)[0])


def members(directory: str) -> set[int]:
    """The pids of the group. The kernel lists a process outside our pid namespace as 0, which is left out."""
    return {int(pid) for pid in read(f"{directory}/cgroup.procs").split()} - {0}


def limit_memory(version: int, directory: str, size: int) -> None:
    """Set memory without swap. Lowering it below what is in use raises EBUSY and changes nothing that matters."""
    if version == 2:
        # The v2 kernel would accept the lower limit and kill until it fits. v1 refuses, and so do we.
        if int(read(f"{directory}/memory.current")) > size:
            raise OSError(errno.EBUSY, "more memory is in use than the new limit", f"{directory}/memory.max")
        write(f"{directory}/memory.max", str(size))
        if os.path.exists(f"{directory}/memory.swap.max"):
            write(f"{directory}/memory.swap.max", "0")
        return
    _limit_sockets(directory, max(LEAST_FOR_SOCKETS, size // SOCKETS_SHARE))
    memory, with_swap = f"{directory}/memory.limit_in_bytes", f"{directory}/memory.memsw.limit_in_bytes"
    if not os.path.exists(with_swap):
        write(memory, str(size))
        return
    # The limit of memory + swap may never be below that of memory: lowering starts with memory, raising ends with it.
    try:
        write(memory, str(size))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        write(with_swap, str(size))
        write(memory, str(size))
        return
    write(with_swap, str(size))


def _limit_sockets(directory: str, size: int) -> None:
    """Limit the socket buffers, which v1 counts apart from other memory, and only if they have a limit.

    Despite its name the file covers TCP and UDP. cgroup v2 counts socket buffers as memory.
    """
    if os.path.exists(f"{directory}/{SOCKETS_FILE}"):
        write(f"{directory}/{SOCKETS_FILE}", str(size))


def limit_pids(directory: str, count: int) -> None:
    write(f"{directory}/pids.max", str(count + PIDS_HEADROOM))


def limit_cpu(version: int, directory: str, cpus: float) -> None:
    quota = max(MIN_QUOTA_US, round(cpus * PERIOD_US))
    if version == 2:
        write(f"{directory}/cpu.max", f"{quota} {PERIOD_US}")
        return
    path = f"{directory}/cpu.cfs_quota_us"
    if int(read(path)) == quota:
        return  # a write would have the kernel visit every group of the machine
    try:
        write(path, str(quota))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # v1 refuses a quota above an ancestor's, which holds anyway (Hutch in a container of half a CPU).
        write(path, str(_ancestors_quota(directory)))


def _ancestors_quota(directory: str) -> int:
    """The tightest quota of a group above `directory`, in our period; -1 if there is none."""
    tightest = -1
    above = os.path.dirname(directory)
    while os.path.exists(f"{above}/cpu.cfs_quota_us"):
        quota = int(read(f"{above}/cpu.cfs_quota_us"))
        if quota > 0:
            ours = quota * PERIOD_US // int(read(f"{above}/cpu.cfs_period_us"))
            tightest = ours if tightest < 0 else min(tightest, ours)
        above = os.path.dirname(above)
    return tightest


def reset_memory_peak(directory: str) -> None:
    """Have the peak of a v1 group count from now on."""
    write(f"{directory}/memory.max_usage_in_bytes", "0")


def order_freeze(version: int, directory: str) -> None:
    """Ask for the freeze. Processes that join a frozen group freeze too, so they may be moved in afterwards."""
    _freezer(version, directory, frozen=True)


def thaw(version: int, directory: str) -> None:
    _freezer(version, directory, frozen=False)


def _freezer(version: int, directory: str, *, frozen: bool) -> None:
    if version == 2:
        write(f"{directory}/cgroup.freeze", "1" if frozen else "0")
    else:
        write(f"{directory}/freezer.state", "FROZEN" if frozen else "THAWED")


def is_frozen(version: int, directory: str) -> bool:
    """Whether every process is frozen. Reading the file is what makes v1 look for those that were late."""
    if version == 2:
        return number(read(f"{directory}/cgroup.events"), b"frozen ") == 1
    return read(f"{directory}/freezer.state").strip() == b"FROZEN"


def remove(directory: str, deadline: float) -> None:
    """Remove the group, waiting until `deadline` (monotonic) for processes that the kernel has not released yet."""
    pause = 0.0005
    while True:
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            if time.monotonic() > deadline:
                left = ", ".join(map(str, sorted(members(directory)))) or "none visible"
                raise OSError(errno.EBUSY, f"still in use (processes: {left}): end them first", directory) from error
            time.sleep(pause)
            pause = min(pause * 2, 0.02)
        else:
            return
