"""Limits how many routing netlink sockets a box may have open at once; further socket(2) calls wait.

Programs use such a socket to list the machine's interfaces (getifaddrs(3), `ip`, Node's os.networkInterfaces). Threat:
unread answers lie in kernel memory that no control group counts, up to 0.2 MB for each socket (the filter lets nobody
enlarge that), and nothing else limits the number of sockets. So the filter asks the guest (seccomp_unotify(2)), which
counts them. The arguments of socket(2) are numbers, so the call that continues is the call that was checked. Where
nobody answers, the kernel says ENOSYS, as on a machine without netlink.

Standard library only: this runs in the guest.
"""

from errno import ENOBUFS
from fcntl import ioctl
from os import O_CLOEXEC, O_RDONLY, close, read
from os import open as open_file
from struct import Struct
from time import monotonic

from hutch.guest.loop import READ, Loop

MAX_SOCKETS = 8
"""Most sockets open at once. Listing the interfaces takes one for less than a millisecond."""
WAIT_TIMEOUT = 1.0
"""Seconds that a call waits for another socket to be closed."""
_RETRY_DELAY = 0.005
_COUNTING_DELAY = 0.02
"""Seconds until a permitted socket shows up in the kernel's count."""

_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_*
_NOTICE_SIZE = 80
_NUMBER = Struct("=Q")
_ANSWER = Struct("=QqiI")
_CONTINUE = 1
"""SECCOMP_USER_NOTIF_FLAG_CONTINUE"""


class NetlinkPermits:
    """Answers the notifications of one filter in the guest. `listener` is the descriptor that loading it returned."""

    def __init__(self, loop: Loop, listener: int) -> None:
        self._loop = loop
        self._listener = listener
        self._waiting: list[tuple[float, int]] = []
        """Arrival time and number of each waiting call."""
        self._permitted: list[float] = []
        """Times of the permits whose sockets may not be counted yet."""
        loop.watch(listener, READ, self._receive)

    def _receive(self, _events: int) -> None:
        notice = bytearray(_NOTICE_SIZE)
        try:
            ioctl(self._listener, _RECEIVE, notice)
        except OSError:
            return  # the caller was killed before we could read the notification
        self._waiting.append((monotonic(), _NUMBER.unpack_from(notice)[0]))
        if len(self._waiting) == 1:
            self._decide()

    def _decide(self) -> None:
        while self._waiting:
            came, number = self._waiting[0]
            if self._count_open() < MAX_SOCKETS:
                self._permitted.append(monotonic())
                self._answer(_ANSWER.pack(number, 0, 0, _CONTINUE))
            elif monotonic() > came + WAIT_TIMEOUT:
                self._answer(_ANSWER.pack(number, 0, -ENOBUFS, 0))
            else:
                self._loop.call_later(_RETRY_DELAY, self._decide)
                return
            self._waiting.pop(0)

    def _count_open(self) -> int:
        """How many sockets are open, or may be in a moment."""
        settled = monotonic() - _COUNTING_DELAY
        self._permitted = [when for when in self._permitted if when > settled]
        return _netlink_sockets() + len(self._permitted)

    def _answer(self, answer: bytes) -> None:
        try:
            ioctl(self._listener, _SEND, answer)
        except OSError:
            return  # the caller was killed while it waited


def _netlink_sockets() -> int:
    """The number of netlink sockets in this network namespace, with those that are not bound yet."""
    table = open_file("/proc/net/protocols", O_RDONLY | O_CLOEXEC)
    try:
        text = read(table, 1 << 14)
    finally:
        close(table)
    row = next(line for line in text.splitlines() if line.startswith(b"NETLINK"))
    return int(row.split()[2])
