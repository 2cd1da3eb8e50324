"""Network namespaces of boxes without a network. One that its box left as it was serves the next.

To make a network namespace and to take it down again is a tenth of what a box costs the machine. So a few of those
whose boxes have ended are kept, if nothing in them tells of the box that had them: no socket is left, and not one of
the kernel's counters has moved, so not a single packet was sent, not even by the box to itself. The others go with
their boxes.

They belong to the spawner and not to a box's user namespace: no box, nor its root, can change anything in one.
Standard library only.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from hutch.providers.native import kernel
from hutch.providers.native.network.loopback import lo_up

_SPARE = 8
"""How many are kept for the boxes to come; each costs the kernel some 0.1 MB."""
_REMEMBERED = 64
"""Of how many living boxes: each costs a descriptor. Those of the others go with their boxes."""
_COUNTERS = ("dev", "snmp", "snmp6")
"""Of the interfaces, of IPv4 and all above it, and of IPv6."""


class BareNetworks:
    """Of a spawner that may make them. `home` is its own network, which it leaves for moments only."""

    def __init__(self, *, careless: bool = False) -> None:
        """`careless`: also those are kept that tell of their boxes, for the attack suite."""
        self._careless = careless
        self.home = _open_current()
        self._spare: list[int] = []
        self._lent: dict[int, int] = {}
        """By the pid of the box's first process; the oldest come first."""
        self._untouched = b""

    def take(self) -> int:
        """A descriptor of one that no living box has, with its loopback up."""
        return self._spare.pop() if self._spare else self._make()

    def lend(self, network: int, pid: int) -> None:
        """Remember who has it: `return_from` must be called at the end of that process, and of all others in it."""
        if len(self._lent) >= _REMEMBERED:
            os.close(self._lent.pop(next(iter(self._lent))))
        self._lent[pid] = network

    def return_from(self, pid: int) -> None:
        """The box has ended: keep its network for another, or let it go."""
        network = self._lent.pop(pid, None)
        if network is None:
            return
        if len(self._spare) < _SPARE and self._is_untouched(network):
            self._spare.append(network)
        else:
            os.close(network)

    def drop_spare(self) -> None:
        while self._spare:
            os.close(self._spare.pop())

    def _make(self) -> int:
        with self._back_home():
            kernel.unshare(kernel.CLONE_NEWNET)
            lo_up()
            if not self._untouched:
                self._untouched = _traces()
            return _open_current()

    def _is_untouched(self, network: int) -> bool:
        with self._back_home():
            kernel.setns(network, kernel.CLONE_NEWNET)
            return self._careless or _traces() == self._untouched

    @contextmanager
    def _back_home(self) -> Iterator[None]:
        try:
            yield
        finally:
            kernel.setns(self.home, kernel.CLONE_NEWNET)


def _open_current() -> int:
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _traces() -> bytes:
    """What could tell of earlier boxes in this namespace: the number of its sockets, and its counters."""
    sockets = _read("sockstat").partition(b"\n")[0]  # what follows counts those of the whole machine
    return b"".join((sockets, *map(_read, _COUNTERS)))


def _read(name: str) -> bytes:
    with suppress(FileNotFoundError):  # a kernel without IPv6
        fd = os.open(f"/proc/self/net/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, 1 << 16)
        finally:
            os.close(fd)
    return b""
