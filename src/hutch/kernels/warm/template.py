"""The template process: it imports the libraries once, and forks an entry into a box for each request.

Standard library and `hutch.linux`, `hutch.guest` only, besides the libraries that it is there to import. It must hold
no secret and keep a single thread: every kernel inherits its memory, and a process with threads cannot enter a user
namespace.
"""

import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from typing import NoReturn

from hutch.guest.processes import knows_exit_statuses
from hutch.guest.protocol import encode
from hutch.kernels.programs.python.kernel import Prepared, prepare
from hutch.kernels.programs.python.snapshot import reseed
from hutch.kernels.warm.entry import EntryRequest, Settings
from hutch.kernels.warm.first_kernel import FirstKernel, wait_and_enter
from hutch.kernels.warm.kernel_guest import Connections, KernelGuest
from hutch.kernels.warm.rehearsal import GuestRehearsal, rehearse_kernel
from hutch.linux import address_space, identity, kernel, landlock, seccomp
from hutch.providers.native.spawn import wire
from hutch.providers.native.spawn.prefault import PageRanges, learn_pages

_DESCRIPTORS = 4
"""What comes with a request: the box's pidfd, the guest's listening socket, its options, and its report socket."""

_RESERVE_DELAY_MS = 10
"""How long nothing happens before a fork is made in reserve: boxes that are being entered come first."""


def main(fd: int, libraries: list[str]) -> None:
    """Import, warm up, report on the socket, and serve until the keeper closes it."""
    sock = socket.socket(fileno=fd)
    kernel.close_all_but([fd])
    command_line = kernel.CommandLine()
    began = time.monotonic()
    missing = {name: reason for name in libraries if (reason := _import(name))}
    prepared = prepare()
    prepared.own_path = sys.path[-1]
    _warm_up(prepared)
    prepared.own_modules = [
        name for name in sys.modules if name.startswith("hutch.") and not name.startswith("hutch.kernels")
    ]
    command_line.show("hutch-template")  # Not earlier: it erases the environment, which libraries read.
    abi = landlock.abi()
    settings = Settings(
        last_capability=identity.last_capability(),
        filter=seccomp.Filter(seccomp.program()),
        landlock=abi,
        guest_domain=landlock.Domain(abi, scopes=landlock.SCOPE_ABSTRACT_UNIX_SOCKET),
        kernel_domain=landlock.Domain(abi),
        command_line=command_line,
    )
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    threads = len(os.listdir("/proc/self/task"))
    gc.collect()
    gc.freeze()  # so that no collection writes to pages that kernels share
    address_space.use_huge_pages()
    pages = _Pages()
    if threads == 1:
        pages.learn(settings, prepared)
    sock.sendall(encode({"ready": True, "threads": threads, "missing": missing, "seconds": time.monotonic() - began}))
    if threads == 1:
        _Server(sock, settings, prepared, pages).run()


def _import(name: str) -> str:
    """Import a library; return why it cannot be imported, or ""."""
    try:
        importlib.import_module(name)
    except Exception as error:  # Whatever a library raises at its import: kernels start without it, and say so.
        return f"{type(error).__name__}: {error}"[:300]
    return ""


def _warm_up(prepared: Prepared) -> None:
    """Use what kernels use first, so that their first result needs no import and specialises no code."""
    namespace: dict[str, object] = {}
    samples = {
        "pandas": "import pandas; f = pandas.DataFrame({'a': [1.5, 2.5], 'b': ['x', 'y']}); "
        "repr(f), f._repr_html_(), repr(f.describe()), f.groupby('b').sum(), f.to_json()",
        "matplotlib": "import matplotlib; matplotlib.use('agg'); import matplotlib.pyplot as p, io; "
        "p.figure().savefig(io.BytesIO(), format='png'); p.close('all')",
    }
    for library, code in samples.items():
        if library in sys.modules:
            try:
                exec(code, namespace)
            except Exception as error:  # A broken library is the code's problem, at its first use.
                prepared.notes.append(f"{library} does not work: {error}"[:300])
    prepared.warm_up()
    reseed()  # Every kernel does, and finds what that needs.


class _Pages:
    """The pages that forks write to after they have entered a box; those that wait copy them ahead."""

    def __init__(self) -> None:
        self.guest = PageRanges()
        self.first_kernel: PageRanges | None = PageRanges() if knows_exit_statuses() else None
        """None where a kernel guest could not learn how its first kernel has ended."""

    def learn(self, settings: Settings, prepared: Prepared) -> None:
        learn_pages(lambda: GuestRehearsal(settings, prepared).perform(), self.guest)
        if self.first_kernel is not None:
            learn_pages(lambda: rehearse_kernel(settings, prepared), self.first_kernel)


class _Server:
    """The template's loop. It keeps forks in reserve, so that the next box does not wait for them."""

    def __init__(self, sock: socket.socket, settings: Settings, prepared: Prepared, pages: _Pages) -> None:
        self._sock = sock
        self._settings = settings
        self._prepared = prepared
        self._pages = pages
        self._reserve: socket.socket | None = None

    def run(self) -> None:
        reader, writer = socket.socketpair()
        for end in (reader, writer):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(reader, select.POLLIN)
        while True:
            events = poll.poll(_RESERVE_DELAY_MS if self._reserve is None else None)
            if not events:
                self._fork_reserve()
            for fd, _ in events:
                if fd == reader.fileno():
                    reader.recv(4096)
                    _reap()
                elif not self._take_request():
                    return

    def _take_request(self) -> bool:
        received = wire.receive(self._sock)
        if received is None:
            return False
        message, fds = received
        try:
            self._pass_on(message, fds)
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _pass_on(self, message: wire.Message, fds: list[int]) -> None:
        """Have the reserve enter the box, or a new fork. A v2 group is joined by the clone itself, which is faster."""
        reserve, self._reserve = self._reserve, None
        if reserve is not None and not message["unified"]:
            with reserve:
                wire.send(reserve, message, fds)
            return
        self._reserve = reserve
        if (kernel.clone(0, fds[-1]) if message["unified"] else os.fork()) == 0:
            self._enter(message, fds)

    def _fork_reserve(self) -> None:
        ours, theirs = wire.pair()
        if os.fork() == 0:
            kernel.close_all_but([theirs.fileno()])
            first_kernel = self._fork_first_kernel()
            self._pages.guest.prefault()
            received = wire.receive(theirs)
            if received is None:
                os._exit(0)  # The template has ended.
            self._enter(*received, first_kernel)
        theirs.close()
        self._reserve = ours

    def _fork_first_kernel(self) -> FirstKernel | None:
        """Fork the process that will be the first kernel beside the guest that this process will be."""
        pages = self._pages.first_kernel
        if pages is None:
            return None
        ours, theirs = wire.pair()
        if os.fork() == 0:
            kernel.close_all_but([theirs.fileno()])
            pages.prefault()
            wait_and_enter(theirs, self._settings, self._prepared)
        theirs.close()
        return FirstKernel(ours)

    def _enter(
        self, message: wire.Message, fds: list[int], first_kernel: FirstKernel | None = None
    ) -> NoReturn:  # fmt: skip
        pidfd, listener, options, report = fds[:_DESCRIPTORS]
        groups = fds[_DESCRIPTORS:]
        if first_kernel is not None:
            first_kernel.enter(message, [pidfd, *groups])
        connections = Connections(listener, options, report)
        guest = KernelGuest(self._settings, connections, self._prepared, first_kernel)
        guest.enter(EntryRequest(pidfd, tuple(groups), **message))


def _reap() -> None:
    """Reap entries, and kernel guests of boxes that have ended: a pid namespace ends only when its last process has."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return
