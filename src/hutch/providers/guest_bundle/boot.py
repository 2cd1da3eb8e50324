"""Turns the process that an engine started in a container into a guest: listen, receive the options, serve.

The engine has already taken every privilege; what is left to do is to keep the box's own commands, which run as the
same user, away from the guest's memory and descriptors. Runs inside the box: standard library only.
"""

import ctypes
import json
import os
import resource
import sys
import time
from typing import NoReturn

from hutch.guest import main as guest
from hutch.providers.guest_bundle import inspection
from hutch.providers.guest_bundle.listener import NO_KEEPER, from_outside, open_listener, receive_options
from hutch.providers.guest_bundle.watchdog import Watchdog

TIMEOUT = 60.0
"""Seconds after which a guest that no keeper has connected to ends, and its container with it."""
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15


def main() -> NoReturn:
    """Serve in `place`, the directory of the socket. `role` is "guest", or "root" for the guest of the box's root."""
    place, role = sys.argv[1:3]
    # Opened now, because after the next step our own /proc files belong to root.
    score = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    _hide(f"hutch-{role}")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0o022)
    listener = open_listener(place)
    listener.settimeout(TIMEOUT)
    try:
        keeper, _ = listener.accept()
        keeper.settimeout(TIMEOUT)
        received = json.loads(receive_options(keeper))
    except (OSError, ValueError) as error:
        print(f"hutch: no keeper came with orders: {error}", file=sys.stderr)
        sys.exit(NO_KEEPER)
    # The clock of the machine that started us would mean nothing on the engine's.
    ttl = received.pop("ttl", 0.0)
    if files := received.pop("open_files", 0):
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if tasks := received.pop("tasks", 0):
        resource.setrlimit(resource.RLIMIT_NPROC, (tasks, tasks))
    if watched := received.pop("watched", None):
        inspection.watchdog = Watchdog(**watched)
        inspection.watchdog.start()
    options = guest.Options(
        **received,
        ttl_deadline=time.monotonic() + ttl if ttl else 0.0,
        may_connect=from_outside,
    )
    context = guest.GuestContext(_spill(place), score, is_init=os.getpid() == 1, is_secondary=role == "root")
    guest.serve(listener, options, context, first=keeper, operations=inspection.OPERATIONS)


def _hide(name: str) -> None:
    """A process that is not dumpable cannot be traced by its own user; its memory, descriptors and root are closed."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_NAME, name.encode())
    prctl(_PR_SET_DUMPABLE, 0)


def _spill(place: str) -> int:
    path = f"{place}/spill"
    os.makedirs(path, 0o700, exist_ok=True)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
