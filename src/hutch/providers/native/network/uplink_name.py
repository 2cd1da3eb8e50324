"""Tells whether an uplink is alive, by a name in the machine's network namespace that the kernel frees with its holder.

Names of abstract Unix sockets belong to a network namespace, as links and tables do, so a tag that was found there is
looked up in the right namespace. Anybody on the machine could take a name, and would gain only that the links and the
table of a dead uplink stay: they filter, and lead nowhere. A file of its own, because every keeper imports it.
"""

import errno
import socket


def stands(tag: str) -> bool:
    """Whether a process holds the name of the uplink `tag` in our network namespace (this takes some 10 µs).

    Only a refused connection means no. Any other error, such as a lack of descriptors, proves nothing.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asking:
            return asking.connect_ex(_name(tag)) != errno.ECONNREFUSED
    except OSError:
        return True


def hold(tag: str) -> socket.socket | None:
    """Hold the name of the uplink `tag` in our network namespace; None if another process does."""
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
