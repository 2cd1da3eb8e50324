"""The spawner's workers for layers of boxes' files: short-lived forks, one for each operation (`layers.entry`).

A fork of the spawner takes as long as the switch of a box's layers. So whoever uses layers finds workers that were
forked before, have the pages that they write to for themselves, and wait for their request. Standard library only.
"""

import os
import signal
import socket
import time
from typing import TYPE_CHECKING

from hutch.linux import kernel, processes
from hutch.providers.native.spawn import wire
from hutch.providers.native.spawn.prefault import PageRanges

if TYPE_CHECKING:
    from hutch.providers.native.layers.entry import LayerRequest

WAITING = 2
"""Workers that wait."""
PRESTART_DELAY = 0.003
"""Seconds without an event before one is forked, so that requests come first: that for a fork comes within this time
after its parent's files were frozen."""
TIMEOUT = 30.0
"""Seconds without work on layers after which the waiting workers end."""
_WARM_UP_RUNS = 26
"""Runs after which the interpreter has specialised its code (`zygote`), so that workers do not write to it."""


class LayerWorkers:
    """Forks workers, and gives them their requests."""

    def __init__(self, *, has_id_ranges: bool) -> None:
        self._has_id_ranges = has_id_ranges
        self._waiting: list[socket.socket] = []
        self._warm = False
        self._pages = PageRanges()
        """The pages that the first worker has written to."""
        self._last_used = 0.0

    def timeout(self) -> float:
        """Seconds until `idle` has something to do; -1 means never."""
        if not self._last_used:
            return -1
        if len(self._waiting) < WAITING:
            return PRESTART_DELAY
        return max(0.0, self._last_used + TIMEOUT - time.monotonic())

    def idle(self) -> bool:
        """Fork one worker if one is wanted and return True; end them all after a long time without work."""
        if not self._last_used:
            return False
        if time.monotonic() - self._last_used >= TIMEOUT:
            self.close()
        elif len(self._waiting) < WAITING:
            try:
                self._waiting.append(self._fork())
            except OSError:  # no more processes, or no memory: the next request finds out, and says it
                self.close()
            return True
        return False

    def close(self) -> None:
        for sock in self._waiting:
            sock.close()  # it ends when it reads that
        self._waiting.clear()
        self._last_used = 0.0

    def begin(self, message: wire.Message, fds: list[int]) -> None:
        """Give a worker its request. It answers on the last of the descriptors."""
        self._last_used = time.monotonic()
        while self._waiting:
            sock = self._waiting.pop(0)
            with sock:
                try:
                    return wire.send(sock, message, fds)
                except (BrokenPipeError, ConnectionResetError):
                    continue  # it was killed
        with self._fork() as sock:
            wire.send(sock, message, fds)
        return None

    def _fork(self) -> socket.socket:
        from hutch.providers.native.layers import entry, view  # most boxes have one layer

        if self._waiting and not self._warm:  # there is time
            self._warm = True
            for _ in range(_WARM_UP_RUNS):
                view.warm_up()
        ours, theirs = wire.pair()
        if os.fork() == 0:
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.setsid()  # so that no signal to the spawner's group ends it half-way
                kernel.close_all_but([theirs.fileno()])
                view.warm_up()
                self._pages.prefault()
                received = wire.receive(theirs)
                if received is not None:
                    message, [*fds, answer] = received
                    request = _request(message, fds, has_id_ranges=self._has_id_ranges)
                    entry.LayerEntry(request, socket.socket(fileno=answer), self._pages).run()
            finally:
                os._exit(0)
        theirs.close()
        return ours


def _request(message: wire.Message, fds: list[int], *, has_id_ranges: bool) -> "LayerRequest":
    from hutch.providers.native.layers.entry import LayerRequest

    return LayerRequest(
        processes.Identity(message["pid"], message["start"], message["boot"]), message["directory"], has_id_ranges,
        tuple(message["namespaces"]), message["action"], message["values"], fds,
    )  # fmt: skip
