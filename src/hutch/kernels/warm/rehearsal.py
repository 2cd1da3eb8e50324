"""Rehearsals of an entry without a box: they show which pages a kernel guest and a first kernel write to.

Forks that wait for a box copy these pages ahead, so that nobody waits for that later.
"""

import json
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from hutch.guest import main as guest
from hutch.kernels.programs.python.kernel import Prepared
from hutch.kernels.warm.entry import Settings, become_program
from hutch.kernels.warm.kernel_guest import Connections, KernelGuest
from hutch.providers.native.spawn import kernel_limits, wire

_CELLS = (
    "import pandas as pd\nframe = pd.DataFrame({'a': [1, 2], 'b': [1.5, 2.5], 'c': ['x', 'y']})\nframe",
    "print(frame.groupby('c').sum())\nframe.a.sum()",
    "frame.sum(numeric_only=True)",
)
"""What a first kernel runs in its rehearsal: other code copies a few pages more."""


class _Ended(BaseException):
    """The first kernel would run now. No guard of the guest's loop catches it."""


class GuestRehearsal(KernelGuest):
    """Serves a keeper that says nothing, as an ordinary process of this machine."""

    def __init__(self, settings: Settings, prepared: Prepared) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind("")  # The kernel chooses a name that is free, unix(7).
        self._listener.listen()
        self._keeper = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._keeper.connect(self._listener.getsockname())
        report, self._reported = wire.pair()
        options = wire.write_memfd(json.dumps({"box_id": "rehearsal", "workdir": "/", "kernel": {}}).encode())
        super().__init__(settings, Connections(self._listener.fileno(), options, report.detach()), prepared)

    def perform(self) -> None:
        kernel_limits.rlimit_calls_of(os.getpid())
        with suppress(_Ended):
            self.serve(-1)

    def _begin(self, made: guest.Guest) -> None:
        super()._begin(made)
        raise _Ended

    def _fork(self, _streams: Sequence[int], _work: Callable[[], object]) -> int:
        forked = os.fork()
        if forked == 0:
            os._exit(0)
        os.waitpid(forked, 0)  # Until its end it has every page in common with this process.
        return forked


def rehearse_kernel(settings: Settings, prepared: Prepared) -> None:
    """Become a kernel that runs a few cells, and return when it has answered them."""
    requests, answers = os.memfd_create("requests"), os.memfd_create("answers")
    for number, code in enumerate(_CELLS):
        request = {"op": "run", "run": f"{number:024}", "language": "python", "code": code, "env": {}}
        os.write(requests, json.dumps(request).encode() + b"\n")
    os.lseek(requests, 0, os.SEEK_SET)
    kernel_limits.rlimit_calls_of(os.getpid())
    become_program((requests, answers, answers), settings.command_line)
    environment = {b"HOME": b"/", b"PATH": b"/usr/bin:/bin", b"LANG": b"C.UTF-8"}
    prepared.become(environment, "/")
