"""Permits for routing netlink sockets: a few of a box's may be open at once, the others wait for their turn.

Programs ask such a socket for the machine's interfaces (getifaddrs(3), `ip`, Node's os.networkInterfaces). But answers
that nobody reads lie in kernel memory that no control group counts, up to 0.2 MB for each socket (the filter lets
nobody enlarge that), and the number of sockets has no limit of its own. So the filter hands the question to the guest
(seccomp_unotify(2)), who counts. The arguments of socket(2) are numbers, so that the call which goes on is the call
that was looked at. Where nobody answers, the kernel says ENOSYS, as on a machine without netlink.

Standard library only: this runs in the guest.
"""

from errno import ENOBUFS
from fcntl import ioctl
from os import O_CLOEXEC, O_RDONLY, close, read
from os import open as open_file
from struct import Struct
from time import monotonic

from hutch.guest.loop import READ, Loop

MOST = 8
"""Sockets at once. Whoever asks for interfaces needs one for less than a millisecond."""
PATIENCE = 1.0
"""Seconds that a question waits for another's socket to be closed."""
_PAUSE = 0.005
_SETTLED = 0.02
"""Seconds until a socket that was permitted is there to be counted."""

_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_*
_NOTICE_SIZE = 80
_NUMBER = Struct("=Q")
_ANSWER = Struct("=QqiI")
_GO_ON = 1
"""SECCOMP_USER_NOTIF_FLAG_CONTINUE"""


class Permits:
    """The guest's side of one filter. `listener` is what loading the filter gave."""

    def __init__(self, loop: Loop, listener: int) -> None:
        self._loop = loop
        self._listener = listener
        self._waiting: list[tuple[float, int]] = []
        """When each came, and its number."""
        self._permitted: list[float] = []
        """When those were permitted that may not be counted yet."""
        loop.watch(listener, READ, self._hear)

    def _hear(self, _events: int) -> None:
        notice = bytearray(_NOTICE_SIZE)
        try:
            ioctl(self._listener, _RECEIVE, notice)
        except OSError:
            return  # it was killed before we could ask what it wants
        self._waiting.append((monotonic(), _NUMBER.unpack_from(notice)[0]))
        if len(self._waiting) == 1:
            self._decide()

    def _decide(self) -> None:
        while self._waiting:
            came, number = self._waiting[0]
            if self._open() < MOST:
                self._permitted.append(monotonic())
                self._answer(_ANSWER.pack(number, 0, 0, _GO_ON))
            elif monotonic() > came + PATIENCE:
                self._answer(_ANSWER.pack(number, 0, -ENOBUFS, 0))
            else:
                self._loop.call_later(_PAUSE, self._decide)
                return
            self._waiting.pop(0)

    def _open(self) -> int:
        """How many there are, or may be in a moment."""
        settled = monotonic() - _SETTLED
        self._permitted = [when for when in self._permitted if when > settled]
        return _netlink_sockets() + len(self._permitted)

    def _answer(self, answer: bytes) -> None:
        try:
            ioctl(self._listener, _SEND, answer)
        except OSError:
            return  # it was killed while it waited


def _netlink_sockets() -> int:
    """Of this network namespace, also those that are not bound yet."""
    table = open_file("/proc/net/protocols", O_RDONLY | O_CLOEXEC)
    try:
        text = read(table, 1 << 14)
    finally:
        close(table)
    row = next(line for line in text.splitlines() if line.startswith(b"NETLINK"))
    return int(row.split()[2])
