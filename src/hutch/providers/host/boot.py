"""Turns an ordinary process of the host into a guest, without hiding or dropping anything. Standard library only.

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
from hutch.providers.guest_bundle.listener import open_listener, receive_options

TIMEOUT = 60.0
_PR_SET_CHILD_SUBREAPER = 36


def main() -> NoReturn:
    """Serve in `place`, the directory of the socket."""
    (place,) = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    listener = open_listener(place)
    os.chmod(f"{place}/guest", 0o600)
    listener.settimeout(TIMEOUT)
    try:
        keeper, _ = listener.accept()
        keeper.settimeout(TIMEOUT)
        received = json.loads(receive_options(keeper))
    except (OSError, ValueError) as error:
        sys.exit(f"hutch: no keeper came with orders: {error}")
    files, ttl = received.pop("open_files"), received.pop("ttl")
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    spill = f"{place}/spill"
    os.makedirs(spill, 0o700, exist_ok=True)
    options = guest.Options(**received, ttl_deadline=time.monotonic() + ttl if ttl else 0.0)
    context = guest.GuestContext(spill_fd=os.open(spill, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    guest.serve(listener, options, context, first=keeper)
