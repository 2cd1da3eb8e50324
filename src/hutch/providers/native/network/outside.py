"""The porter's own life: unprivileged, in the machine's network namespace, until its spawner and its boxes have gone.

See porter.py for why it is a process. Everything it starts ends with it.
"""

import contextlib
import errno
import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import Any, NoReturn

from hutch.providers.native import kernel
from hutch.providers.native.network import presence, rootless
from hutch.providers.native.network.availability import TUN, own_tun_possible
from hutch.providers.native.network.dns import Forwarder, Resolvers
from hutch.providers.native.network.firewall import FirewallError, find_program
from hutch.providers.native.network.netlink import Netlink
from hutch.providers.native.network.refusing import Refusing
from hutch.providers.native.network.wiring import joined

NOBODY = 65534
_MESSAGE = 1 << 20
_RTMGRP_LINK, _RTMGRP_IPV4_IFADDR = 0x1, 0x10

# No port of the box is opened on the machine, none of the machine's in the box, and the gateway's address does not
# mean "the machine's loopback", as it does by default.
_PASTA = ("--foreground", "--quiet", "--ipv4-only", "--config-net", "--no-map-gw",
          "-t", "none", "-u", "none", "-T", "none", "-U", "none")  # fmt: skip


def live(channel: int, parent: int) -> NoReturn:
    """Be the porter; called in a fresh fork, whose descriptors but this one and the standard ones are closed."""
    status = 1
    try:
        os.setsid()
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


def network_namespace() -> int:
    """What tells the namespace this process stands in from others."""
    return os.stat("/proc/thread-self/ns/net").st_ino


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
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096) if hard > 0 else 4096, hard))
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
        self._refusing: Refusing | None = None
        self._forwarder: Forwarder | None = None
        self._pasta: subprocess.Popen[bytes] | None = None
        self._pasta_words = -1
        self._anchor = 0

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            while True:
                wait = self._forwarder.wait() if self._forwarder else None
                for key, _ in self._selector.select(wait):
                    key.data()
                if self._forwarder:
                    self._forwarder.expire()
        finally:
            self._end_anchor()
            if self._pasta is not None:
                self._pasta.kill()  # it may be the init of a pid namespace, deaf to SIGTERM

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
        except (OSError, FirewallError) as error:
            self._tell({"error": f"network porter, {order['do']}: {error}"})

    def _do(self, order: dict[str, Any], descriptors: list[int]) -> None:
        match order["do"]:
            case "survey":
                self._survey(IPv4Network(order["pool"]))
            case "namespace":
                self._make_namespace()
            case "forward":
                self._forward(order, descriptors)
            case "watch":
                reading, hearing = (socket.socket(fileno=each) for each in descriptors)
                self._links = Netlink(reading), hearing
                self._tell({})
            case "carry":
                self._carry(order["pid"])
            case "settled":
                self._end_anchor()

    def _tell(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        socket.send_fds(self._channel, [json.dumps(message).encode()], list(descriptors))

    def _survey(self, pool: IPv4Network) -> None:
        self._addresses = self._network.addresses()
        addresses = [str(each) for each in self._addresses]
        routes = [str(each) for each in self._network.routes() if each.overlaps(pool)]
        self._tell({"tag": self._tag, "addresses": addresses, "routes": routes, "namespace": network_namespace()})

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
        """A child that sits in new user and network namespaces until pasta, too, has entered them."""
        ready, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            _sit_in_namespaces(told)
        os.close(told)
        with open(ready, "rb") as file:
            answer = file.read().decode()
        self._anchor = pid
        if answer != "ready":
            self._end_anchor()
            raise OSError(0, f"no user namespace for uid {os.geteuid()}: {answer}")
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._tell({"pid": pid}, [namespace])
        os.close(namespace)

    def _end_anchor(self) -> None:
        if self._anchor:
            os.kill(self._anchor, signal.SIGKILL)
            os.waitpid(self._anchor, 0)
            self._anchor = 0

    def _forward(self, order: dict[str, Any], descriptors: list[int]) -> None:
        datagrams, listener = (socket.socket(fileno=each) for each in descriptors)
        resolvers = Resolvers(order["resolv_conf"])
        self._forwarder = Forwarder(self._selector, resolvers, datagrams, listener, IPv4Network(order["share"]))
        self._tell({})

    def _carry(self, pid: int) -> None:
        program = find_program("pasta")
        if program is None:
            raise OSError(0, "pasta is not installed")
        self._pasta_words = os.memfd_create("pasta")
        self._pasta = subprocess.Popen(
            [program, *_PASTA, "--ns-ifname", f"hv{self._tag}up", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=self._pasta_words,
            stderr=self._pasta_words,
            env={},
            preexec_fn=lambda: kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL),
        )
        watch = os.pidfd_open(self._pasta.pid)
        self._selector.register(watch, selectors.EVENT_READ, self._pasta_ended)
        self._refusing = Refusing(pid, self._tag, self._addresses)
        self._watch_addresses()
        self._refusing.renew(self._network.addresses())  # from here on no change is missed
        self._tell({})

    def _pasta_ended(self) -> None:
        assert self._pasta is not None
        status = self._pasta.wait()
        words = os.pread(self._pasta_words, 2000, 0).decode(errors="replace").strip()
        self._fail(f"pasta ended with status {status}: {words}")

    def _fail(self, reason: str) -> NoReturn:
        """Nothing is carried any more; whoever can still hear it is told why."""
        with contextlib.suppress(OSError):
            self._tell({"error": reason})
        sys.exit(1)

    def _watch_addresses(self) -> None:
        """Pasta connects from the machine, so an address the machine gets later must be refused from then on."""
        events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        events.setblocking(False)
        events.bind((0, _RTMGRP_IPV4_IFADDR))
        self._selector.register(events, selectors.EVENT_READ, lambda: self._addresses_changed(events))

    def _addresses_changed(self, events: socket.socket) -> None:
        assert self._refusing is not None
        with contextlib.suppress(OSError):  # more has happened than the kernel kept: we look ourselves
            events.recv(65536)
        try:
            self._refusing.renew(self._network.addresses())
        except (OSError, FirewallError) as error:  # better no way out than one to the machine itself
            self._fail(f"the machine's new address could not be refused: {error}")


def _new_name() -> tuple[str, socket.socket]:
    """A tag that no other uplink of the machine has, held before anything bears it."""
    while True:
        tag = os.urandom(3).hex()
        name = presence.hold(tag)
        if name is not None:
            return tag, name


def _sit_in_namespaces(told: int) -> NoReturn:
    """Say "ready", or what was refused, and sleep until killed."""
    answer = b"ready"
    try:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # or /proc/self/uid_map is root's, and pasta may not look in
        rootless.unshare_mapped(os.geteuid(), os.getegid())
    except OSError as error:
        answer = str(error).encode()
    os.write(told, answer)
    kernel.close_from(3)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        signal.pause()
