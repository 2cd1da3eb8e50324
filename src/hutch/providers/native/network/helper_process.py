"""The porter's own life: unprivileged, in the machine's network namespace, until its spawner and its boxes have gone.

See porter.py for why it is a process. It only keeps: the work, and whatever can crash of it, is a runner's (runner.py),
which it replaces. Everything it starts ends with it.
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
from hutch.providers.native.network import namespaces, uplink_name
from hutch.providers.native.network.availability import TUN, own_tun_possible
from hutch.providers.native.network.helper_worker import Runner, RunnerFailed, Work, seated, unseat
from hutch.providers.native.network.links import joined
from hutch.providers.native.network.namespaces import NetworkNamespace, namespace_id

NOBODY = 65534
_MESSAGE = 1 << 20
_RTMGRP_LINK = 0x1
_PAUSES = (0.0, 0.2, 0.5, 1.0, 2.0)
"""Seconds before each new runner, where one after the other fails."""
_STEADY_SECONDS = 10.0
"""A runner that has lived so long did not fail at once."""


def live(channel: int, parent: int) -> NoReturn:
    """Be the porter; called in a fresh fork, whose descriptors but this one and the standard ones are closed."""
    status = 1
    try:
        os.setsid()
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)  # what a runner leaves is the porter's to reap
        os.dup2(channel, 3, inheritable=False)
        kernel.close_from(4)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _drop_privileges()
        spawner = os.pidfd_open(parent)
        if os.getppid() == parent:
            _Porter(socket.socket(fileno=3), spawner).run()
        status = 0
    except SystemExit:
        status = 0
    except BaseException as error:  # the process boundary: reported, then the end
        print(f"hutch network porter: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    data, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE, 4, socket.MSG_CMSG_CLOEXEC)
    return data, descriptors


def _open_tun() -> None:
    """A tun device that the user we are about to become may open, in a mount namespace that only we and pasta see."""
    if not os.path.exists(TUN) or os.stat(TUN).st_mode & 0o006 == 0o006:
        return
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    device = os.stat(TUN).st_rdev
    kernel.mount("tmpfs", os.path.dirname(TUN), "tmpfs", kernel.MS_NOSUID | kernel.MS_NOEXEC, "mode=0755,size=64k")
    os.mknod(TUN, 0o020666, device)
    os.chmod(TUN, 0o666)  # the umask took its part


def _drop_privileges() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # as the spawner's, and for the same reason
    if os.geteuid() == 0:
        if own_tun_possible():
            _open_tun()
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)


class _Porter:
    """One selector, and whatever the spawner asked for."""

    def __init__(self, channel: socket.socket, spawner: int) -> None:
        self._channel = channel
        self._spawner = spawner
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ, self._obey)
        # The spawner's end of the channel may live on in a fork of the spawner: its closing is not enough of a sign.
        self._selector.register(spawner, selectors.EVENT_READ, self._left_alone)
        self._network = Netlink()
        self._alone = False
        self._tag, self._name = _new_name()
        self._addresses: list[IPv4Address] = []
        self._links: tuple[Netlink, socket.socket] | None = None
        self._anchor = 0
        self._work: Work | None = None
        self._runner: Runner | None = None
        self._failures = 0
        self._due: float | None = None
        """When the next runner is to begin."""

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            while True:
                for key, _ in self._selector.select(self._wait()):
                    key.data()
                if self._wait() == 0:
                    self._mend()
        finally:
            self._end_anchor()
            if self._runner is not None:
                self._runner.end()

    def _wait(self) -> float | None:
        return None if self._due is None else max(0.0, self._due - time.monotonic())

    def _obey(self) -> None:
        if self._alone:
            return
        data, descriptors = receive(self._channel)
        if not data:
            self._left_alone()
            return
        order = json.loads(data)
        try:
            self._do(order, descriptors)
        except (OSError, RunnerFailed) as error:
            self._tell({"error": f"network porter, {order['do']}: {error}"})

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

    def _tell(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        socket.send_fds(self._channel, [json.dumps(message).encode()], list(descriptors))

    def _survey(self, pool: IPv4Network) -> None:
        self._addresses = self._network.addresses()
        addresses = [str(each) for each in self._addresses]
        routes = [str(each) for each in self._network.routes() if each.overlaps(pool)]
        self._tell({"tag": self._tag, "addresses": addresses, "routes": routes, "namespace": namespace_id()})

    def _left_alone(self) -> None:
        """The spawner has ended. Its boxes may live on, and the last of them ends us."""
        if self._alone:
            return
        self._alone = True
        for each in (self._channel, self._spawner):
            self._selector.unregister(each)
        self._channel.close()
        if self._links is None:
            sys.exit(0)
        _, hearing = self._links
        hearing.setblocking(False)
        hearing.bind((0, _RTMGRP_LINK))
        self._selector.register(hearing, selectors.EVENT_READ, self._links_changed)
        self._end_unless_joined()

    def _links_changed(self) -> None:
        assert self._links is not None
        try:
            self._links[1].recv(65536)
        except OSError as error:
            if error.errno != errno.ENOBUFS:  # more has happened than the kernel kept: we look ourselves
                raise
        self._end_unless_joined()

    def _end_unless_joined(self) -> None:
        assert self._links is not None
        if not joined(self._tag, self._links[0].links()):
            sys.exit(0)

    def _make_namespace(self) -> None:
        """With a child that sits in new user and network namespaces until a runner has found them."""
        try:
            self._anchor, place = seated(lambda: namespaces.unshare_mapped(os.geteuid(), os.getegid()))
        except OSError as error:
            raise OSError(0, f"no user namespace for uid {os.geteuid()}: {error.strerror}") from error
        place.close()
        namespace = os.open(f"/proc/{self._anchor}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._tell({"pid": self._anchor}, [namespace])
        os.close(namespace)

    def _open_target(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as target:
            self._tell({"gateway": _gateway()}, [target.fileno()])

    def _end_anchor(self) -> None:
        if self._anchor:
            unseat(self._anchor)
            self._anchor = 0

    def _serve(self, order: dict[str, Any], descriptors: list[int]) -> None:
        datagrams, listener, reading, hearing = (socket.socket(fileno=each) for each in descriptors)
        self._links = Netlink(reading), hearing
        namespace = None if order["carry"] is None else NetworkNamespace.of(order["carry"])
        share = IPv4Network(order["share"])
        self._work = Work(
            self._tag, share, order["resolv_conf"], datagrams, listener, namespace, order["proving"]
        )  # fmt: skip
        self._begin(self._addresses)
        self._end_anchor()
        self._tell({})

    def _begin(self, refused: list[IPv4Address] | None) -> None:
        assert self._work is not None
        self._runner = Runner(self._work, refused)
        self._selector.register(self._runner.pidfd, selectors.EVENT_READ, self._runner_ended)

    def _runner_ended(self) -> None:
        assert self._runner is not None
        self._selector.unregister(self._runner.pidfd)
        runner, self._runner = self._runner, None
        if time.monotonic() - runner.began > _STEADY_SECONDS:
            self._failures = 0
        self._failed(runner.end())

    def _failed(self, reason: str) -> None:
        """The boxes are offline: another runner soon, unless that has been of no use."""
        if self._failures == len(_PAUSES):
            self._give_up(reason)
        self._due = time.monotonic() + _PAUSES[self._failures]
        self._failures += 1

    def _mend(self) -> None:
        self._due = None
        try:
            self._begin(None)  # what the namespace refuses only the last runner knew
        except (OSError, RunnerFailed) as error:
            self._failed(str(error))

    def _give_up(self, reason: str) -> NoReturn:
        """Whoever can still hear it is told why. Everybody else finds that our name is gone."""
        with contextlib.suppress(OSError):
            self._tell({"error": reason})
        sys.exit(1)


def _gateway() -> str:
    """Of the machine's default route; "" if it has none."""
    with open("/proc/self/net/route", encoding="ascii") as routes:
        for line in routes:
            _, target, gateway, *_, mask = line.split()[:8]
            if target == mask == "00000000":
                return socket.inet_ntoa(struct.pack("=I", int(gateway, 16))) if int(gateway, 16) else ""
    return ""


def _new_name() -> tuple[str, socket.socket]:
    """A tag that no other uplink of the machine has, held before anything bears it."""
    while True:
        tag = os.urandom(3).hex()
        name = uplink_name.hold(tag)
        if name is not None:
            return tag, name
