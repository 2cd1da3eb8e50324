"""From an ordinary process of the machine to a guest: nothing is hidden, nothing is taken away. Standard library only.

It becomes the parent of whatever its commands leave behind (PR_SET_CHILD_SUBREAPER), so that the end of a box finds
all of its processes below this one.
"""

import ctypes
import json
import os
import resource
import sys
import time
from typing import NoReturn

from hutch.guest import main as guest
from hutch.providers.guest_bundle.listener import open_door, receive

PATIENCE = 60.0
_PR_SET_CHILD_SUBREAPER = 36


def main() -> NoReturn:
    """`place` is the directory of the door."""
    (place,) = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    door = open_door(place)
    os.chmod(f"{place}/guest", 0o600)
    door.settimeout(PATIENCE)
    try:
        keeper, _ = door.accept()
        keeper.settimeout(PATIENCE)
        told = json.loads(receive(keeper))
    except (OSError, ValueError) as error:
        sys.exit(f"hutch: no keeper came with orders: {error}")
    files, ttl = told.pop("open_files"), told.pop("ttl")
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    spill = f"{place}/spill"
    os.makedirs(spill, 0o700, exist_ok=True)
    options = guest.Options(**told, ttl_deadline=time.monotonic() + ttl if ttl else 0.0)
    context = guest.GuestContext(spill_fd=os.open(spill, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    guest.serve(door, options, context, first=keeper)
