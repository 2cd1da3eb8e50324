"""Installing the guest in a remote box: an archive, a script that root runs, and a process. Pure functions."""

import functools
import gzip
import json
import shlex
from typing import Any

from hutch.model.spec import EffectiveSpec, MountMode, Order
from hutch.providers.guest_bundle.listener import GUEST_DIR
from hutch.providers.guest_bundle.pack import HOME as BUNDLE_HOME
from hutch.providers.guest_bundle.pack import GuestBundle

ARCHIVE = "/tmp/.hutch-guest.tar.gz"
HEADROOM = 8
"""RLIMIT_NPROC counts the guest too. It stops a fork bomb at once; the watchdog ends what is over the limit."""


@functools.lru_cache(1)
def archive(bundle: GuestBundle) -> bytes:
    """Return the compressed bundle. The first call blocks for a second, so call it in a thread."""
    return gzip.compress(bundle.archive(), 1, mtime=0)


def is_installed_script(bundle: GuestBundle) -> str:
    """Return the script that succeeds if this very bundle is there already, because an image may bring it."""
    return f"test -e {BUNDLE_HOME}/{bundle.digest}"


def install_script(bundle: GuestBundle) -> str:
    """Return the script with which root unpacks the archive."""
    return (
        f"set -e; mkdir -p {BUNDLE_HOME}; tar -xzf {ARCHIVE} -C {BUNDLE_HOME}; rm -f {ARCHIVE}; "
        f"chmod -R go-w {BUNDLE_HOME}; : >{BUNDLE_HOME}/{bundle.digest}"
    )


def directories_script(spec: EffectiveSpec, user: str) -> str:
    """Return the script with which root makes the box's directories: the socket's, and a workspace of the user's."""
    owned = spec.workspace.mode is MountMode.RW
    made = f"set -e; mkdir -p {GUEST_DIR} /workspace; chown {user} {GUEST_DIR}; chmod 711 {GUEST_DIR}; "
    return made + (f"chown {user} /workspace" if owned else "chown 0 /workspace; chmod 755 /workspace")


def guest_command(bundle: GuestBundle) -> str:
    return "exec " + shlex.join(bundle.argv("hutch.providers.guest_bundle.boot", GUEST_DIR, "guest"))


def relay_command(bundle: GuestBundle, *, fresh: bool) -> str:
    words = ["text", "wait"] if fresh else ["text"]
    return "exec " + shlex.join(bundle.argv("hutch.providers.guest_bundle.relay", GUEST_DIR, *words))


def guest_options(order: Order, home: str, user: str) -> bytes:
    """Return the options that the guest receives first. Secrets travel only this way."""
    spec = order.spec
    standard = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": home,
        "USER": user, "LOGNAME": user, "SHELL": "/bin/bash", "TMPDIR": "/tmp",
    }  # fmt: skip
    options: dict[str, Any] = {
        "box_id": order.box_id,
        "workdir": spec.workdir,
        "env": standard | spec.env | spec.secrets,
        "orphan_grace": order.orphan_grace_sec,
        "ttl": spec.ttl_sec,
        "open_files": spec.limits.open_files,
        "tasks": spec.limits.pids + HEADROOM,
        "watched": {"memory_bytes": spec.limits.memory_mb << 20, "pids": spec.limits.pids},
    }
    return json.dumps(options).encode()
