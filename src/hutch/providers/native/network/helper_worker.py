"""The worker of a network helper: a child that answers DNS queries and runs pasta, and that the helper replaces.

Whatever can crash, crashes here. Descriptors that must outlive a worker (the sockets that boxes query, the namespaces)
belong to the helper, and the next worker inherits them. When a worker is replaced, boxes lose the connections that
pasta carried and the answers that were under way, and are online again.
"""

import contextlib
import os
import select
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network
from typing import NamedTuple, NoReturn

from hutch.linux import kernel, netlink
from hutch.linux.netlink import Netlink
from hutch.providers.native.network.availability import find_program
from hutch.providers.native.network.dns import Forwarder, Resolvers
from hutch.providers.native.network.firewall import FirewallError, MachineAddressFilter, carrier
from hutch.providers.native.network.namespaces import NetworkNamespace

READY = b"ready"
_PASTA_SECONDS = 10.0
_GONE_SECONDS = 2.0
_RTMGRP_IPV4_IFADDR = 0x10

# No port of a box is opened on the machine, and no port of the machine in a box.
_PASTA = ("--foreground", "--quiet", "--ipv4-only", "--config-net",
          "-t", "none", "-u", "none", "-T", "none", "-U", "none")  # fmt: skip
_NO_LOOPBACK = "--no-map-gw"
"""Without it, the gateway's address would mean the machine's loopback."""


class WorkerFailed(Exception):
    """A worker could not start; the message is its report."""


class WorkerInputs(NamedTuple):
    """The inputs of every worker of an uplink."""

    tag: str
    share: IPv4Network
    resolv_conf: str
    datagrams: socket.socket
    listener: socket.socket
    namespace: NetworkNamespace | None
    """The namespace whose traffic pasta carries; None if the machine forwards packets itself."""
    testing: bool = False
    """Whether pasta shows the machine's loopback at the gateway's address (connection_test.py)."""


class Worker:
    """The helper's handle on its worker."""

    def __init__(self, work: WorkerInputs, refused: list[IPv4Address] | None) -> None:
        """Fork the worker and return when it works; else raise WorkerFailed.

        `refused` are the machine's addresses that the namespace already refuses, or None if that is not known.
        """
        self._words, report = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _run_worker(work, refused, report, parent)
        os.close(report)
        self.pidfd = os.pidfd_open(self._pid)
        self.began = time.monotonic()
        first = os.read(self._words, len(READY))
        if first != READY:
            raise WorkerFailed(self.end(first))

    def end(self, words: bytes = b"") -> str:
        """End the worker, unless it has ended by itself, and return its report, which begins with `words`.

        Pasta ends with it and is reaped here: the process that would inherit it may be a keeper, unaware of it.
        """
        os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # it was killed before it had a process group
            os.killpg(self._pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-self._pid, 0)
        with open(self._words, "rb") as file:
            words += file.read()
        os.close(self.pidfd)
        return words.decode(errors="replace").strip() or f"the network worker ended with status {status}"


def start_namespace_holder(enter: Callable[[], None]) -> tuple[int, socket.socket]:
    """Fork a child that stays in the namespaces which `enter` enters, so that pasta finds them by its pid.

    Returns the pid and a route socket of its network namespace. `end_namespace_holder` ends it.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _hold_namespace(enter, theirs, parent)
    theirs.close()
    with ours:
        answer, descriptors, _, _ = socket.recv_fds(ours, 4096, 1, socket.MSG_CMSG_CLOEXEC)
    if answer != READY:
        end_namespace_holder(pid)
        raise OSError(0, answer.decode() or "the process that holds the namespaces died")
    return pid, socket.socket(fileno=descriptors[0])


def end_namespace_holder(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _hold_namespace(enter: Callable[[], None], report: socket.socket, parent: int) -> NoReturn:
    """Enter the namespaces, report "ready" or the refusal, and sleep until killed."""
    try:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # or /proc/self/uid_map is root's, and pasta may not look in
        enter()
        with netlink.route_socket() as place:
            socket.send_fds(report, [READY], [place.fileno()])
        kernel.close_from(3)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while os.getppid() == parent:  # else it died before PR_SET_PDEATHSIG took effect
            signal.pause()
    except OSError as error:
        report.send(str(error).encode())
    finally:  # never return into the code of the process we were forked from
        os._exit(1)


def _run_worker(work: WorkerInputs, refused: list[IPv4Address] | None, report: int, parent: int) -> NoReturn:
    status = 1
    try:
        os.setpgid(0, 0)  # by this group the helper finds what we leave behind
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # The helper's name and channel would stay open in this process after the helper's end.
        kept = (report, work.datagrams.fileno(), work.listener.fileno(), *(work.namespace or ()))
        kernel.close_all_but(kept)
        if os.getppid() == parent:
            _WorkerProcess(work, refused).run(report)
        status = 0
    except BaseException as error:  # the process boundary: reported, then the end
        reason = str(error) if isinstance(error, _Failed) else f"network, {type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            os.write(report, reason.encode()[:4000])
    finally:
        os._exit(status)


class _Failed(Exception):
    """The worker can do its work no more; the message says why."""


class _WorkerProcess:
    """The event loop: DNS queries, the end of pasta, and changes of the machine's addresses."""

    def __init__(self, work: WorkerInputs, refused: list[IPv4Address] | None) -> None:
        self._work = work
        self._selector = selectors.DefaultSelector()
        self._network = Netlink()
        if work.namespace is not None:
            self._address_filter = MachineAddressFilter(work.namespace, work.tag, refused)
            self._watch_addresses()
            self._address_filter.update(self._network.addresses())  # from here on no change is missed
            self._carry(work.namespace)
        self._forwarder = Forwarder(
            self._selector, Resolvers(work.resolv_conf), work.datagrams, work.listener, work.share
        )

    def run(self, report: int) -> None:
        os.write(report, READY)
        while True:
            for key, _ in self._selector.select(self._forwarder.wait()):
                key.data()
            self._forwarder.expire()

    def _carry(self, namespace: NetworkNamespace) -> None:
        """Start pasta, and return when it carries traffic."""
        program = find_program("pasta")
        if program is None:
            raise _Failed("pasta is not installed")
        interface = carrier(self._work.tag)
        anchor, place = start_namespace_holder(namespace.enter)
        try:
            with Netlink(place) as there:
                # The pasta of a worker that has just died may still be ending.
                _until(lambda: interface not in there.links(), _GONE_SECONDS, "an earlier pasta did not end")
                options = _PASTA if self._work.testing else (*_PASTA, _NO_LOOPBACK)
                self._start_pasta([program, *options, "--ns-ifname", interface, str(anchor)])
                _until(lambda: self._carries(there), _PASTA_SECONDS, "pasta gave no route")
        finally:
            end_namespace_holder(anchor)

    def _start_pasta(self, argv: list[str]) -> None:
        self._pasta_words = os.memfd_create("pasta")
        self._pasta = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=self._pasta_words,
            stderr=self._pasta_words,
            env={},
            preexec_fn=lambda: kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL),
        )
        self._pasta_pidfd = os.pidfd_open(self._pasta.pid)
        self._selector.register(self._pasta_pidfd, selectors.EVENT_READ, self._pasta_ended)

    def _carries(self, there: Netlink) -> bool:
        if select.select([self._pasta_pidfd], [], [], 0)[0]:
            self._pasta_ended()
        return there.has_default_route()

    def _pasta_ended(self) -> NoReturn:
        status = self._pasta.wait()
        words = os.pread(self._pasta_words, 2000, 0).decode(errors="replace").strip()
        raise _Failed(f"pasta ended with status {status}: {words}")

    def _watch_addresses(self) -> None:
        """Watch for new addresses of the machine, which must be refused because pasta connects from the machine."""
        events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        events.setblocking(False)
        events.bind((0, _RTMGRP_IPV4_IFADDR))
        self._selector.register(events, selectors.EVENT_READ, lambda: self._addresses_changed(events))

    def _addresses_changed(self, events: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the kernel may have dropped events; the addresses are listed below anyway
            events.recv(65536)
        try:
            self._address_filter.update(self._network.addresses())
        except (OSError, FirewallError) as error:  # no network is better than one that reaches the machine itself
            raise _Failed(f"the machine's new address could not be refused: {error}") from error


def _until(true: Callable[[], bool], seconds: float, otherwise: str) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise _Failed(f"{otherwise} within {seconds:g} s")
        time.sleep(0.002)
