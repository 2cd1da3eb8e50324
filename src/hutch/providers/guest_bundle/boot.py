"""From a process that an engine started in a container to a guest: open the door, hear the options, serve.

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
from hutch.providers.guest_bundle.listener import from_outside, open_door, receive
from hutch.providers.guest_bundle.watchdog import Watchdog

PATIENCE = 60.0
"""Seconds until a guest whose keeper never came ends, and its container with it."""
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15


def main() -> NoReturn:
    """`place` is the directory of the door, `role` is guest or deputy."""
    place, role = sys.argv[1:3]
    # While our own /proc files are still ours: after the next step they are root's.
    score = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    _hide(f"hutch-{role}")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0o022)
    door = open_door(place)
    door.settimeout(PATIENCE)
    try:
        keeper, _ = door.accept()
        keeper.settimeout(PATIENCE)
        told = json.loads(receive(keeper))
    except (OSError, ValueError) as error:
        sys.exit(f"hutch: no keeper came with orders: {error}")
    # A time of the machine that started us would mean nothing on the engine's.
    ttl = told.pop("ttl", 0.0)
    if files := told.pop("open_files", 0):
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if tasks := told.pop("tasks", 0):
        resource.setrlimit(resource.RLIMIT_NPROC, (tasks, tasks))
    if watched := told.pop("watched", None):
        inspection.watchdog = Watchdog(**watched)
        inspection.watchdog.start()
    options = guest.Options(
        **told,
        ttl_deadline=time.monotonic() + ttl if ttl else 0.0,
        may_connect=from_outside,
    )
    context = guest.GuestContext(_spill(place), score, is_init=os.getpid() == 1, is_secondary=role == "deputy")
    guest.serve(door, options, context, first=keeper, operations=inspection.OPERATIONS)


def _hide(name: str) -> None:
    """A process that is not dumpable cannot be traced by its own user; its memory, descriptors and root are closed."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_NAME, name.encode())
    prctl(_PR_SET_DUMPABLE, 0)


def _spill(place: str) -> int:
    path = f"{place}/spill"
    os.makedirs(path, 0o700, exist_ok=True)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
