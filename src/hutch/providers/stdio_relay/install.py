"""How the guest comes into a box elsewhere: one archive, one script run as root, one process. Pure."""

import functools
import gzip
import json
import shlex
from typing import Any

from hutch.model.spec import EffectiveSpec, MountMode, Order
from hutch.providers.guest_bundle.listener import GUEST_PLACE
from hutch.providers.guest_bundle.pack import HOME as PLANTED
from hutch.providers.guest_bundle.pack import Plant

ARCHIVE = "/tmp/.hutch-guest.tar.gz"
HEADROOM = 8
"""RLIMIT_NPROC counts the guest too, and stops a bomb at once; what is over the limit then the watchdog ends."""


@functools.lru_cache(1)
def archive(plant: Plant) -> bytes:
    """Blocks for a second the first time: call it in a thread."""
    return gzip.compress(plant.archive(), 1, mtime=0)


def is_sown(plant: Plant) -> str:
    """The script that succeeds if this very guest is there already: an image may bring it."""
    return f"test -e {PLANTED}/{plant.digest}"


def sow(plant: Plant) -> str:
    """The script that unpacks the archive, as root."""
    return (
        f"set -e; mkdir -p {PLANTED}; tar -xzf {ARCHIVE} -C {PLANTED}; rm -f {ARCHIVE}; "
        f"chmod -R go-w {PLANTED}; : >{PLANTED}/{plant.digest}"
    )


def furnish(spec: EffectiveSpec, user: str) -> str:
    """The script that makes the places of a box, as root: its door, and a workspace that is the user's."""
    owned = spec.workspace.mode is MountMode.RW
    made = f"set -e; mkdir -p {GUEST_PLACE} /workspace; chown {user} {GUEST_PLACE}; chmod 711 {GUEST_PLACE}; "
    return made + (f"chown {user} /workspace" if owned else "chown 0 /workspace; chmod 755 /workspace")


def guest(plant: Plant) -> str:
    return "exec " + shlex.join(plant.argv("hutch.providers.guest_bundle.boot", GUEST_PLACE, "guest"))


def relay(plant: Plant, *, fresh: bool) -> str:
    words = ["text", "wait"] if fresh else ["text"]
    return "exec " + shlex.join(plant.argv("hutch.providers.guest_bundle.relay", GUEST_PLACE, *words))


def told(order: Order, home: str, user: str) -> bytes:
    """The guest's first orders. Secrets go this way, and no other."""
    spec = order.spec
    standard = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": home,
        "USER": user, "LOGNAME": user, "SHELL": "/bin/bash", "TMPDIR": "/tmp",
    }  # fmt: skip
    orders: dict[str, Any] = {
        "box_id": order.box_id,
        "workdir": spec.workdir,
        "env": standard | spec.env | spec.secrets,
        "orphan_grace": order.orphan_grace_sec,
        "ttl": spec.ttl_sec,
        "open_files": spec.limits.open_files,
        "tasks": spec.limits.pids + HEADROOM,
        "watched": {"memory_bytes": spec.limits.memory_mb << 20, "pids": spec.limits.pids},
    }
    return json.dumps(orders).encode()
