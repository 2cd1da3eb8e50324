"""The process of a network helper: unprivileged, in the machine's network namespace, until its last box has ended.

helper.py says why it is a process. It only supervises: the work, and whatever can crash, is done by a worker
(helper_worker.py), which it replaces. Everything it starts ends with it.
"""

import contextlib
import errno
import json
import os
import resource
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import Any, NoReturn

from hutch.linux import kernel
from hutch.linux.netlink import Netlink
from hutch.providers.native.network import namespaces
from hutch.providers.native.network.availability import TUN, own_tun_possible
from hutch.providers.native.network.helper_worker import (
    Worker,
    WorkerFailed,
    WorkerInputs,
    end_namespace_holder,
    start_namespace_holder,
)
from hutch.providers.native.network.links import has_box_links
from hutch.providers.native.network.namespaces import NetworkNamespace, namespace_id

NOBODY = 65534
_MESSAGE = 1 << 20
_RTMGRP_LINK = 0x1
_RESTART_DELAYS = (0.0, 0.2, 0.5, 1.0, 2.0)
"""Seconds before each new worker, while one after the other fails."""
_STABLE_SECONDS = 10.0
"""A worker that has run this long resets the count of failures."""


def run_helper(channel: int, parent: int) -> NoReturn:
    """Run the helper in a new fork, which closes all descriptors but this one and the standard streams."""
    status = 1
    try:
        os.setsid()
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)  # the helper reaps what a worker leaves
        os.dup2(channel, 3, inheritable=False)
        kernel.close_from(4)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _drop_privileges()
        spawner = os.pidfd_open(parent)
        if os.getppid() == parent:
            _HelperProcess(socket.socket(fileno=3), spawner).run()
        status = 0
    except SystemExit:
        status = 0
    except BaseException as error:  # the process boundary: reported, then the end
        print(f"hutch network helper: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    data, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE, 4, socket.MSG_CMSG_CLOEXEC)
    return data, descriptors


def _open_tun() -> None:
    """Make a tun device that the user nobody may open, in a mount namespace that only we and pasta see."""
    if not os.path.exists(TUN) or os.stat(TUN).st_mode & 0o006 == 0o006:
        return
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    device = os.stat(TUN).st_rdev
    kernel.mount("tmpfs", os.path.dirname(TUN), "tmpfs", kernel.MS_NOSUID | kernel.MS_NOEXEC, "mode=0755,size=64k")
    os.mknod(TUN, 0o020666, device)
    os.chmod(TUN, 0o666)  # mknod has applied the umask


def _drop_privileges() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # for the same reason as in `spawner.main`
    if os.geteuid() == 0:
        if own_tun_possible():
            _open_tun()
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)


class _HelperProcess:
    """The event loop: requests of the spawner, the end of the worker, and changes of links."""

    def __init__(self, channel: socket.socket, spawner: int) -> None:
        self._channel = channel
        self._spawner = spawner
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ, self._read_request)
        # A fork of the spawner may still hold its end of the channel, so end of file there is not enough of a sign.
        self._selector.register(spawner, selectors.EVENT_READ, self._spawner_ended)
        self._network = Netlink()
        self._without_spawner = False
        self._tag, self._name = _new_name()
        self._addresses: list[IPv4Address] = []
        self._links: tuple[Netlink, socket.socket] | None = None
        self._holder = 0
        self._work: WorkerInputs | None = None
        self._worker: Worker | None = None
        self._failures = 0
        self._due: float | None = None
        """The time at which the next worker starts."""

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            while True:
                for key, _ in self._selector.select(self._wait()):
                    key.data()
                if self._wait() == 0:
                    self._restart_worker()
        finally:
            self._end_holder()
            if self._worker is not None:
                self._worker.end()

    def _wait(self) -> float | None:
        return None if self._due is None else max(0.0, self._due - time.monotonic())

    def _read_request(self) -> None:
        if self._without_spawner:
            return
        data, descriptors = receive(self._channel)
        if not data:
            self._spawner_ended()
            return
        order = json.loads(data)
        try:
            self._do(order, descriptors)
        except (OSError, WorkerFailed) as error:
            self._send({"error": f"network helper, {order['do']}: {error}"})

    def _do(self, order: dict[str, Any], descriptors: list[int]) -> None:
        match order["do"]:
            case "survey":
                self._survey(IPv4Network(order["pool"]))
            case "namespace":
                self._make_namespace()
            case "target":
                self._open_target()
            case "serve":
                self._serve(order, descriptors)

    def _send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        socket.send_fds(self._channel, [json.dumps(message).encode()], list(descriptors))

    def _survey(self, pool: IPv4Network) -> None:
        self._addresses = self._network.addresses()
        addresses = [str(each) for each in self._addresses]
        routes = [str(each) for each in self._network.routes() if each.overlaps(pool)]
        self._send({"tag": self._tag, "addresses": addresses, "routes": routes, "namespace": namespace_id()})

    def _spawner_ended(self) -> None:
        """Handle the end of the spawner. Its boxes may still run, and the last of them ends the helper."""
        if self._without_spawner:
            return
        self._without_spawner = True
        for each in (self._channel, self._spawner):
            self._selector.unregister(each)
        self._channel.close()
        if self._links is None:
            sys.exit(0)
        _, hearing = self._links
        hearing.setblocking(False)
        hearing.bind((0, _RTMGRP_LINK))
        self._selector.register(hearing, selectors.EVENT_READ, self._links_changed)
        self._end_without_boxes()

    def _links_changed(self) -> None:
        assert self._links is not None
        try:
            self._links[1].recv(65536)
        except OSError as error:
            if error.errno != errno.ENOBUFS:  # the kernel dropped events; the links are listed below anyway
                raise
        self._end_without_boxes()

    def _end_without_boxes(self) -> None:
        assert self._links is not None
        if not has_box_links(self._tag, self._links[0].links()):
            sys.exit(0)

    def _make_namespace(self) -> None:
        """Make user and network namespaces, held by a child until a worker has opened them."""
        try:
            self._holder, place = start_namespace_holder(lambda: namespaces.unshare_mapped(os.geteuid(), os.getegid()))
        except OSError as error:
            raise OSError(0, f"no user namespace for uid {os.geteuid()}: {error.strerror}") from error
        place.close()
        namespace = os.open(f"/proc/{self._holder}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._send({"pid": self._holder}, [namespace])
        os.close(namespace)

    def _open_target(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as target:
            self._send({"gateway": _gateway()}, [target.fileno()])

    def _end_holder(self) -> None:
        if self._holder:
            end_namespace_holder(self._holder)
            self._holder = 0

    def _serve(self, order: dict[str, Any], descriptors: list[int]) -> None:
        datagrams, listener, reading, hearing = (socket.socket(fileno=each) for each in descriptors)
        self._links = Netlink(reading), hearing
        namespace = None if order["carry"] is None else NetworkNamespace.of(order["carry"])
        share = IPv4Network(order["share"])
        self._work = WorkerInputs(
            self._tag, share, order["resolv_conf"], datagrams, listener, namespace, order["testing"]
        )  # fmt: skip
        self._begin(self._addresses)
        self._end_holder()
        self._send({})

    def _begin(self, refused: list[IPv4Address] | None) -> None:
        assert self._work is not None
        self._worker = Worker(self._work, refused)
        self._selector.register(self._worker.pidfd, selectors.EVENT_READ, self._worker_ended)

    def _worker_ended(self) -> None:
        assert self._worker is not None
        self._selector.unregister(self._worker.pidfd)
        worker, self._worker = self._worker, None
        if time.monotonic() - worker.began > _STABLE_SECONDS:
            self._failures = 0
        self._failed(worker.end())

    def _failed(self, reason: str) -> None:
        """Schedule another worker, or give up after too many failures. Boxes are offline meanwhile."""
        if self._failures == len(_RESTART_DELAYS):
            self._give_up(reason)
        self._due = time.monotonic() + _RESTART_DELAYS[self._failures]
        self._failures += 1

    def _restart_worker(self) -> None:
        self._due = None
        try:
            self._begin(None)  # only the last worker knew which addresses the namespace refuses
        except (OSError, WorkerFailed) as error:
            self._failed(str(error))

    def _give_up(self, reason: str) -> NoReturn:
        """Report the reason to the spawner if it still runs, and end. Others notice that our name is free."""
        with contextlib.suppress(OSError):
            self._send({"error": reason})
        sys.exit(1)


def _gateway() -> str:
    """The gateway of the machine's default route; "" if it has none."""
    with open("/proc/self/net/route", encoding="ascii") as routes:
        for line in routes:
            _, target, gateway, *_, mask = line.split()[:8]
            if target == mask == "00000000":
                return socket.inet_ntoa(struct.pack("=I", int(gateway, 16))) if int(gateway, 16) else ""
    return ""


def _new_name() -> tuple[str, socket.socket]:
    """A tag that no other uplink of the machine has, and the socket that holds its name."""
    while True:
        tag = os.urandom(3).hex()
        name = namespaces.hold_uplink_name(tag)
        if name is not None:
            return tag, name
