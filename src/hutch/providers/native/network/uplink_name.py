"""Whether an uplink still stands: a name in the machine's network namespace, freed by the kernel with its last holder.

Names of abstract Unix sockets belong to a network namespace, just as links and tables do: who asks about a tag found
there asks in the right place, whatever directories its owner used. Anybody on the machine could take a name, and would
gain that the links and the table of a dead uplink stay: they filter, and lead nowhere.
"""

import errno
import socket


def stands(tag: str) -> bool:
    """Whether somebody holds the name of the uplink `tag`, in the namespace we stand in (some 10 µs).

    Only the kernel's clear word says no: without a descriptor to ask with, or the right to, nothing is known.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asking:
            return asking.connect_ex(_name(tag)) != errno.ECONNREFUSED
    except OSError:
        return True


def hold(tag: str) -> socket.socket | None:
    """Hold the name of the uplink `tag`, in the namespace we stand in; None if somebody else does."""
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        name.bind(_name(tag))
    except OSError as error:
        name.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return name


def _name(tag: str) -> str:
    return f"\0hutch-uplink-{tag}"
