"""Network namespaces of boxes without a network. One that its box left as it was serves the next.

To make a network namespace and to take it down again is 6 % of what a box costs the machine. So a few of those
whose boxes have ended are kept, if nothing in them tells of the box that had them: no socket is left, and not one of
the kernel's counters has moved, so not a single packet was sent, not even by the box to itself. The others go with
their boxes.

They belong to the spawner and not to a box's user namespace: no box, nor its root, can change anything in one.
Standard library only.
"""

import os
from contextlib import suppress

from hutch.providers.native import kernel
from hutch.providers.native.network.loopback import lo_up

_SPARE = 8
"""How many are kept for the boxes to come; each costs the kernel some 0.1 MB."""
_REMEMBERED = 32
"""Of how many living boxes: each costs five descriptors. Those of the others go with their boxes."""
_COUNTERS = ("dev", "snmp", "snmp6")
"""Of the interfaces, of IPv4 and all above it, and of IPv6."""


class BareNetwork:
    """One namespace, with its loopback up: made by a process that is in another one, and is so again afterwards."""

    __slots__ = ("_opened",)

    def __init__(self, home: int) -> None:
        self._opened: list[int] = []
        """The namespace, what counts its sockets, and its counters."""
        try:
            kernel.unshare(kernel.CLONE_NEWNET)
            lo_up()
            self._opened.append(_open_current())
            self._opened.append(_open_file("sockstat"))
            for name in _COUNTERS:
                with suppress(FileNotFoundError):  # a kernel without IPv6
                    self._opened.append(_open_file(name))
        except BaseException:
            self.close()
            raise
        finally:
            kernel.setns(home, kernel.CLONE_NEWNET)

    @property
    def fd(self) -> int:
        return self._opened[0]

    def traces(self) -> bytes:
        """What could tell of boxes that had it: the number of its sockets, and its counters."""
        _, sockets, *counters = self._opened
        used = os.pread(sockets, 256, 0).partition(b"\n")[0]  # what follows counts those of the whole machine
        return b"".join((used, *(os.pread(fd, 1 << 16, 0) for fd in counters)))

    def close(self) -> None:
        """The last process in it may live on; it goes with that one."""
        while self._opened:
            os.close(self._opened.pop())


class BareNetworks:
    """Of a spawner that may make them. `home` is its own network, which it leaves for moments only."""

    def __init__(self, *, careless: bool = False) -> None:
        """`careless`: also those are kept that tell of their boxes, for the attack suite."""
        self._careless = careless
        self.home = _open_current()
        self._spare: list[BareNetwork] = []
        self._lent: dict[int, BareNetwork] = {}
        """By the pid of the box's first process; the oldest come first."""
        self._untouched = b""

    def take(self) -> BareNetwork:
        """One that no living box has."""
        if self._spare:
            return self._spare.pop()
        network = BareNetwork(self.home)
        self._untouched = self._untouched or network.traces()
        return network

    def lend(self, network: BareNetwork, pid: int) -> None:
        """Remember who has it: `return_from` must be called at the end of that process, and of all others in it."""
        if len(self._lent) >= _REMEMBERED:
            self._lent.pop(next(iter(self._lent))).close()
        self._lent[pid] = network

    def return_from(self, pid: int) -> None:
        """The box has ended: keep its network for another, or let it go."""
        network = self._lent.pop(pid, None)
        if network is None:
            return
        if len(self._spare) < _SPARE and (self._careless or network.traces() == self._untouched):
            self._spare.append(network)
        else:
            network.close()

    def drop_spare(self) -> None:
        while self._spare:
            self._spare.pop().close()


def _open_current() -> int:
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _open_file(name: str) -> int:
    """Of the current namespace; it tells of that one for ever."""
    return os.open(f"/proc/self/net/{name}", os.O_RDONLY | os.O_CLOEXEC)
