"""User and network namespaces of our own, for a machine that gives us no privilege.

A veth pair joins two network namespaces only by a hand that has CAP_NET_ADMIN over both. Without root there is one
such hand: a process in a user namespace that is the parent of every box's. So the spawner of networked boxes enters
one when it starts, before its first box, and stays: it would have no power over boxes made from outside.
"""

import os

from hutch.linux import kernel
from hutch.linux.loopback import lo_up


def unshare_mapped(uid: int, gid: int) -> None:
    """Enter new user and network namespaces, with the ids unchanged. For single-threaded processes only.

    The identity map keeps every path, file owner and box map as it was outside; what changes is that this process
    now holds every capability over the two namespaces, until it execs.
    """
    kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNET)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    lo_up()
