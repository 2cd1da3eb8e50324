"""The porter's runner: the child that does the work of an uplink, and that the porter replaces when it ends.

It answers the boxes' questions and has pasta at its side: whatever can crash of an uplink crashes here. Descriptors
that must outlive it (the sockets that boxes ask, the way into the namespace) are the porter's, and the next runner has
them too. Boxes lose the connections that pasta carried and the answers that were under way, and are online again.
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
from hutch.providers.native.network.dns import Forwarder, Resolvers
from hutch.providers.native.network.firewall import FirewallError, MachineAddressFilter, carrier, find_program
from hutch.providers.native.network.namespaces import NetworkNamespace

READY = b"ready"
_PASTA_SECONDS = 10.0
_GONE_SECONDS = 2.0
_RTMGRP_IPV4_IFADDR = 0x10

# No port of the box is opened on the machine, and none of the machine's in the box.
_PASTA = ("--foreground", "--quiet", "--ipv4-only", "--config-net",
          "-t", "none", "-u", "none", "-T", "none", "-U", "none")  # fmt: skip
_NO_LOOPBACK = "--no-map-gw"
"""Or the gateway's address would mean "the machine's loopback"."""


class RunnerFailed(Exception):
    """A runner could not begin; the message is what it said."""


class Work(NamedTuple):
    """What every runner of an uplink gets."""

    tag: str
    share: IPv4Network
    resolv_conf: str
    datagrams: socket.socket
    listener: socket.socket
    namespace: NetworkNamespace | None
    """Where pasta is to carry; None: the machine forwards."""
    proving: bool = False
    """Whether pasta shows the machine's loopback in the place of the gateway (`proof`)."""


class Runner:
    """The porter's handle on it."""

    def __init__(self, work: Work, refused: list[IPv4Address] | None) -> None:
        """Returns when it works; raises RunnerFailed. `refused`: the machine's addresses that the namespace already
        refuses, if that is known."""
        self._words, told = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _live(work, refused, told, parent)
        os.close(told)
        self.pidfd = os.pidfd_open(self._pid)
        self.began = time.monotonic()
        first = os.read(self._words, len(READY))
        if first != READY:
            raise RunnerFailed(self.end(first))

    def end(self, words: bytes = b"") -> str:
        """End it, if it has not ended by itself; its last words, after those that were read. Pasta goes with it, and is
        reaped here: the process that would get it otherwise may be a keeper, which knows nothing of it."""
        os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # it was killed before it had a group
            os.killpg(self._pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-self._pid, 0)
        with open(self._words, "rb") as file:
            words += file.read()
        os.close(self.pidfd)
        return words.decode(errors="replace").strip() or f"the runner of the network ended with status {status}"


def seated(enter: Callable[[], None]) -> tuple[int, socket.socket]:
    """A child that sits in other namespaces, where `enter` leads, so that pasta finds them by its pid; and a route
    socket of that place. `unseat` ends it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _sit(enter, theirs, parent)
    theirs.close()
    with ours:
        answer, descriptors, _, _ = socket.recv_fds(ours, 4096, 1, socket.MSG_CMSG_CLOEXEC)
    if answer != READY:
        unseat(pid)
        raise OSError(0, answer.decode() or "the process that was to sit there died")
    return pid, socket.socket(fileno=descriptors[0])


def unseat(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _sit(enter: Callable[[], None], told: socket.socket, parent: int) -> NoReturn:
    """Say "ready", or what was refused, and sleep until killed."""
    try:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # or /proc/self/uid_map is root's, and pasta may not look in
        enter()
        with netlink.route_socket() as place:
            socket.send_fds(told, [READY], [place.fileno()])
        kernel.close_from(3)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while os.getppid() == parent:  # else it died before we could ask for its death's signal
            signal.pause()
    except OSError as error:
        told.send(str(error).encode())
    finally:  # whatever happens: above us stand the functions of the process we were forked from
        os._exit(1)


def _live(work: Work, refused: list[IPv4Address] | None, told: int, parent: int) -> NoReturn:
    status = 1
    try:
        os.setpgid(0, 0)  # by its group the porter finds what we leave behind
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # The porter's name and its channel would outlive it in us.
        kept = (told, work.datagrams.fileno(), work.listener.fileno(), *(work.namespace or ()))
        kernel.close_but(kept)
        if os.getppid() == parent:
            _Running(work, refused).run(told)
        status = 0
    except BaseException as error:  # the process boundary: reported, then the end
        reason = str(error) if isinstance(error, _Failed) else f"network, {type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            os.write(told, reason.encode()[:4000])
    finally:
        os._exit(status)


class _Failed(Exception):
    """Nothing is carried any more; the message says why."""


class _Running:
    """One selector for questions, pasta's end and the machine's addresses."""

    def __init__(self, work: Work, refused: list[IPv4Address] | None) -> None:
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

    def run(self, told: int) -> None:
        os.write(told, READY)
        while True:
            for key, _ in self._selector.select(self._forwarder.wait()):
                key.data()
            self._forwarder.expire()

    def _carry(self, namespace: NetworkNamespace) -> None:
        """Start pasta; returns when it carries."""
        program = find_program("pasta")
        if program is None:
            raise _Failed("pasta is not installed")
        interface = carrier(self._work.tag)
        anchor, place = seated(namespace.enter)
        try:
            with Netlink(place) as there:
                # The pasta of a runner that has just died is on its way out.
                _until(lambda: interface not in there.links(), _GONE_SECONDS, "an earlier pasta did not end")
                options = _PASTA if self._work.proving else (*_PASTA, _NO_LOOPBACK)
                self._start_pasta([program, *options, "--ns-ifname", interface, str(anchor)])
                _until(lambda: self._carries(there), _PASTA_SECONDS, "pasta gave no route")
        finally:
            unseat(anchor)

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
        """Pasta connects from the machine, so an address the machine gets later must be refused from then on."""
        events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        events.setblocking(False)
        events.bind((0, _RTMGRP_IPV4_IFADDR))
        self._selector.register(events, selectors.EVENT_READ, lambda: self._addresses_changed(events))

    def _addresses_changed(self, events: socket.socket) -> None:
        with contextlib.suppress(OSError):  # more has happened than the kernel kept: we look ourselves
            events.recv(65536)
        try:
            self._address_filter.update(self._network.addresses())
        except (OSError, FirewallError) as error:  # better no way out than one to the machine itself
            raise _Failed(f"the machine's new address could not be refused: {error}") from error


def _until(true: Callable[[], bool], seconds: float, otherwise: str) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise _Failed(f"{otherwise} within {seconds:g} s")
        time.sleep(0.002)
