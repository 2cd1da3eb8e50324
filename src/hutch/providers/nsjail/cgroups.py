"""Which control groups nsjail may make on this machine, and what a jail that was killed leaves in them."""

import contextlib
import os
from pathlib import Path

from hutch.providers.nsjail.argv import Groups

ROOT = "/sys/fs/cgroup"
PARENT = "HUTCH.NSJAIL"
_V1 = ("memory", "pids", "cpu")


def find(root: str = ROOT) -> Groups:
    """Made once for all jails. Version 0: we may not, or the machine has none."""
    try:
        if os.path.exists(f"{root}/cgroup.controllers"):
            return _unified(root)
        for controller in _V1:
            os.makedirs(f"{root}/{controller}/{PARENT}", exist_ok=True)
            if not os.access(f"{root}/{controller}/{PARENT}/tasks", os.W_OK):
                return Groups(0)
        return Groups(1, PARENT, swap=os.path.exists(f"{root}/memory/{PARENT}/memory.memsw.limit_in_bytes"))
    except OSError:
        return Groups(0)


def _unified(root: str) -> Groups:
    """v2 gives controllers only to groups whose parent hands them down and holds no process itself."""
    parent = Path(root, PARENT)
    parent.mkdir(exist_ok=True)
    for place in (Path(root), parent):
        (place / "cgroup.subtree_control").write_text("+memory +pids +cpu")
    return Groups(2, str(parent))


def remove(guest: int, groups: Groups, root: str = ROOT) -> None:
    """nsjail removes the groups of a jail that ends before it; one that was killed itself could not."""
    roots = [f"{root}/{name}/{groups.parent}" for name in _V1] if groups.version == 1 else [groups.parent]
    for place in roots if groups.version else []:
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(f"{place}/NSJAIL.{guest}")
