"""Operations with which a keeper asks a bundled guest about its container, which it cannot see itself.

An engine shows a container its own control group at /sys/fs/cgroup, read-only; it does not see the rest.
Runs inside the box: standard library only.
"""

import os
from typing import Any

from hutch.providers.guest_bundle.watchdog import Watchdog

_V1 = {
    "oom_kills": ("memory/memory.oom_control", b"oom_kill "),
    "pids_hits": ("pids/pids.events", b"max "),
    "memory_peak_bytes": ("memory/memory.max_usage_in_bytes", b""),
}
_V2 = {
    "oom_kills": ("memory.events", b"oom_kill "),
    "pids_hits": ("pids.events", b"max "),
    "memory_peak_bytes": ("memory.peak", b""),
}


watchdog: Watchdog | None = None
"""The watchdog of a guest whose control groups count the whole sandbox instead of the box."""


def counters(_guest: object, channel: Any, _fields: dict[str, Any]) -> None:
    """Reply with what the kernel has counted for the whole box, by name; None where there is no such file."""
    root = "/sys/fs/cgroup"
    files = _V2 if os.path.exists(f"{root}/cgroup.controllers") else _V1
    found = {name: _number(f"{root}/{path}", key) for name, (path, key) in files.items()}
    if watchdog is not None:
        watchdog.look()
        found["oom_kills"] = (found["oom_kills"] or 0) + watchdog.memory_kills
        found["pids_hits"] = (found["pids_hits"] or 0) + watchdog.process_kills
    channel.reply(found)


def watch(_guest: object, channel: Any, fields: dict[str, Any]) -> None:
    """Set new limits for the watchdog."""
    if watchdog is not None:
        watchdog.memory_bytes, watchdog.pids = int(fields["memory_bytes"]), int(fields["pids"])
    channel.reply()


def identities(_guest: object, channel: Any, fields: dict[str, Any]) -> None:
    """Reply with device and inode of each path, by which the keeper checks what the engine has mounted."""
    found: list[dict[str, int | str]] = []
    for path in fields["paths"]:
        try:
            info = os.stat(path, follow_symlinks=False)
        except OSError as error:
            found.append({"error": os.strerror(error.errno or 0)})
        else:
            found.append({"dev": info.st_dev, "ino": info.st_ino})
    channel.reply({"found": found})


def _number(path: str, key: bytes) -> int | None:
    try:
        with open(path, "rb") as file:
            for line in file:
                if line.startswith(key):
                    return int(line[len(key) :])
    except (OSError, ValueError):
        return None
    return None


OPERATIONS = {"counters": counters, "identities": identities, "watch": watch}
