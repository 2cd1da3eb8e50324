"""A rehearsal of an entry without a box: it shows which pages a kernel guest writes to until its first kernel starts.

A fork that waits for a box copies these pages ahead (`prefault`), so that nobody waits for that later.
"""

import json
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from hutch.guest import main as guest
from hutch.kernels.programs.python.kernel import Prepared
from hutch.kernels.warm.entry import Entry, EntryRequest, Settings
from hutch.providers.native.spawn import kernel_limits, wire


class _Ended(BaseException):
    """The first kernel would run now. No guard of the guest's loop catches it."""


class Rehearsal(Entry):
    """Serves a keeper that says nothing, as an ordinary process of this machine."""

    def __init__(self, settings: Settings, prepared: Prepared) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind("")  # The kernel chooses a name that is free, unix(7).
        self._listener.listen()
        self._keeper = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._keeper.connect(self._listener.getsockname())
        report, self._reported = wire.pair()
        options = wire.write_memfd(json.dumps({"box_id": "rehearsal", "workdir": "/", "kernel": {}}).encode())
        request = EntryRequest(
            pidfd=-1, listener=self._listener.fileno(), options=options, report=report.detach(), groups=(),
            unified=False, pid=os.getpid(), has_id_ranges=False,
        )  # fmt: skip
        super().__init__(settings, request, prepared)

    def perform(self) -> None:
        kernel_limits.rlimit_calls_of(os.getpid())
        with suppress(_Ended):
            self._run_guest(-1)

    def _begin(self, made: guest.Guest) -> None:
        super()._begin(made)
        raise _Ended

    def _fork(self, _actions: Sequence[tuple[Any, ...]], _work: Callable[[], None]) -> int:
        forked = os.fork()
        if forked == 0:
            os._exit(0)
        os.waitpid(forked, 0)  # Until its end it has every page in common with this process.
        return forked
