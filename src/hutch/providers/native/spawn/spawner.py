"""The spawner: a fork server for boxes. One thread, few imports, a clean environment, and an end when its keeper ends.

It never runs a user's code and never reads what a box wrote. It answers requests in any order: a box is begun at once
and its outcome told later. While nothing is asked it keeps a few stems of the last shape. Standard library only.
"""

import gc
import os
import resource
import select
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

from hutch.guest.files import paths
from hutch.linux import identity, kernel, landlock, processes, seccomp
from hutch.linux.cgroups import Ceiling, Tree, detect
from hutch.providers.native.rootfs import root
from hutch.providers.native.spawn import accounts, wire
from hutch.providers.native.spawn.child_steps import Claim, Given, Setting
from hutch.providers.native.spawn.enter import Entry
from hutch.providers.native.spawn.prestart import Nursery, Order, Stem

if TYPE_CHECKING:
    from hutch.providers.native.network.uplink import Uplink

STEMS = 4
"""How many stems wait; each costs about 1.7 MB, all that its box will need."""
QUIET = 0.0005
"""Seconds without any event before a stem is made where none is left: orders come first."""
LULL = 0.02
"""The same while some are left: whoever has just got a box runs a command in it, and has the processors to himself."""
PATIENCE = 30.0
"""Seconds without an order after which the stems go: an idle spawner costs nothing."""


class Spawner:
    """The loop: requests on one socket, news from children on theirs."""

    def __init__(self, sock: socket.socket, nursery: Nursery, uplink: "Uplink | None") -> None:
        self._sock = sock
        self._uplink = uplink
        self._nursery = nursery
        self._epoll = select.epoll()
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        if uplink is not None:
            self._epoll.register(uplink.fileno(), select.EPOLLIN)
        self._alarm, alarm = socket.socketpair()
        alarm.setblocking(False)
        self._alarm.setblocking(False)
        # A deputy becomes an orphan of the pid namespace that its surgeon came from: the machine's init, which may be
        # slow to bury it, would hold up the end of its box, whose namespace waits for all of its dead.
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(alarm.fileno(), warn_on_full_buffer=False)
        self._alarm_end = alarm
        self._epoll.register(self._alarm.fileno(), select.EPOLLIN)
        self._busy: dict[int, Stem] = {}
        """Children with an order, by pid, until we have seen that they serve.

        Nobody waits at their sockets: to be woken by each that is ready would cost it, and its keeper, the processor
        that they need in this moment. One that fails ends, which is heard; the others are looked at in a lull.
        """
        self._entering: dict[int, tuple[socket.socket, int]] = {}
        """Surgeons under way, with the number of the request."""
        self._waiting: list[Stem] = []
        self._last: Order | None = None
        """The newest that stems may be made for."""
        self._worthwhile = False
        self._used = 0.0

    def run(self) -> None:
        while True:
            events = self._epoll.poll(self._timeout())
            if not events:
                self._idle()
            for fd, _ in events:
                if fd == self._sock.fileno():
                    if not self._take_request():
                        return
                elif fd == self._alarm.fileno():
                    self._reap()
                elif self._uplink is not None and fd == self._uplink.fileno():
                    if not self._uplink.handle():
                        # Of no more use: the boxes stay, and the keeper starts another for those that come.
                        self._answer(0, {"ending": self._uplink.broken})
                        return
                else:
                    self._hear_surgeon(fd)

    def close(self) -> None:
        """Children that nobody can claim any more go; ready boxes stay."""
        for stem in (*self._waiting, *self._busy.values()):
            if not _serves(stem):
                self._nursery.end(stem)
        self._waiting.clear()
        self._busy.clear()  # whoever waits for one hears of our end
        self._reap()  # boxes that have just ended have no more use for the uplink
        self._nursery.close()

    def _timeout(self) -> float:
        if not self._worthwhile:
            return -1
        if len(self._waiting) < STEMS:
            return LULL if self._waiting else QUIET
        return max(0.0, self._used + PATIENCE - time.monotonic())

    def _idle(self) -> None:
        """Nobody asks: make one stem, or let them all go after a while."""
        self._look_at_busy()
        if self._busy:
            return  # one that is on its way needs the processors more than one that nobody waits for
        if time.monotonic() - self._used >= PATIENCE:
            self._drop_stems()
            self._worthwhile = False
        elif len(self._waiting) < STEMS and self._last is not None:
            try:
                self._waiting.append(self._nursery.begin_ahead(self._last.shape, self._last.ceiling))
            except Exception as error:  # the task boundary: boxes are made without stems then
                self._worthwhile = False
                self._answer(0, {"trouble": f"it makes no boxes ahead: {str(error) or repr(error)}"})
            self._tell_trouble()

    def _take_request(self) -> bool:
        received = wire.receive(self._sock)
        if received is None:
            return False
        message, fds = received
        try:
            if message["op"] == "create":
                self._create(message, Given(*fds))
            elif message["op"] == "enter":
                self._enter(message, fds[0])
            elif message["op"] == "show":
                process = processes.Identity(message["pid"], message["start"], message["boot"])
                self._await_surgeon(self._nursery.show(process, root.Extra(*message["extra"])), message["n"])
            else:
                raise ValueError(f"unknown operation {message['op']!r}")
        except Exception as error:  # the task boundary: whatever went wrong is the answer to this request
            self._answer(message["n"], wire.told("begin", error))
        finally:
            for fd in fds:
                os.close(fd)
        self._tell_trouble()
        return True

    def _create(self, message: wire.Message, given: Given) -> None:
        order = _order(message, given)
        stem = self._stem_for(order)
        if stem is None:
            stem = self._nursery.begin(order)
        else:
            try:
                self._nursery.claim(stem, order)
            except BaseException:
                self._nursery.end(stem)
                raise
        try:
            self._tell(stem)
        except OSError:
            # The keeper died after it had asked: of this box nobody knows, and whoever takes over has looked already.
            self._nursery.end(stem)
            raise
        self._busy[stem.process.pid] = stem
        self._used = time.monotonic()
        if order.shape.store is not None:
            return
        # A shape asked for once (`hutch run`) is not worth a stem.
        repeated = self._last is not None and order.shape == self._last.shape
        self._worthwhile = repeated and self._nursery.prestarts
        if not self._worthwhile:
            self._drop_stems()
        self._last = order

    def _enter(self, message: wire.Message, options: int) -> None:
        process = processes.Identity(message["pid"], message["start"], message["boot"])
        entry = Entry(process, message["directory"], message["door"], message["uid"], options)
        self._await_surgeon(self._nursery.enter(entry, message["groups"]), message["n"])

    def _await_surgeon(self, sock: socket.socket, number: int) -> None:
        self._entering[sock.fileno()] = (sock, number)
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _tell(self, stem: Stem) -> None:
        """Told at once; that the child has become a guest the keeper hears from itself, and from us if it fails."""
        assert stem.order is not None
        facts = stem.facts()
        if self._uplink is not None and stem.shape.network != "off":
            facts["uplink"] = self._uplink.tag
        self._answer(stem.order.number, {"box": facts})

    def _tell_trouble(self) -> None:
        """Boxes are made all the same: nobody would hear of it otherwise."""
        if trouble := self._nursery.take_trouble():
            self._answer(0, {"trouble": trouble})

    def _stem_for(self, order: Order) -> Stem | None:
        if order.shape.store or (order.claim.extras and not self._nursery.ranged):
            return None  # an ordinary user's child must open its mounts before it leaves the host's
        while self._waiting and self._waiting[0].shape == order.shape:
            stem = self._waiting.pop(0)
            if _alive(stem):
                return stem
            self._nursery.end(stem)
        return None

    def _drop_stems(self) -> None:
        while self._waiting:
            self._nursery.end(self._waiting.pop())

    def _look_at_busy(self) -> None:
        """Who has become a guest is its keeper's, and no longer ours."""
        for pid, stem in tuple(self._busy.items()):
            if not _alive(stem):
                del self._busy[pid]
                self._hear(stem)

    def _hear(self, stem: Stem) -> bool:
        """A child's last words: True if it had become a guest. If not its order is answered, and nothing of it left."""
        received = _last_words(stem.sock)
        if received is not None and received[0].get("ready"):
            stem.sock.close()
            return True
        self._nursery.end(stem)
        assert stem.order is not None
        died = {"step": "build", "error": "the box's first process died (perhaps out of memory)", "errno": ""}
        self._answer(stem.order.number, received[0] if received else died)
        return False

    def _hear_surgeon(self, fd: int) -> None:
        sock, number = self._entering.pop(fd)
        self._epoll.unregister(fd)
        received = _last_words(sock)
        sock.close()
        died = {"step": "enter", "error": "the surgeon died", "errno": ""}
        self._answer(number, received[0] if received else died)

    def _answer(self, number: int, message: dict[str, Any]) -> None:
        wire.send(self._sock, {"n": number, **message})

    def _reap(self) -> None:
        try:
            while self._alarm.recv(4096):
                pass
        except BlockingIOError:
            pass
        try:
            while True:
                # Look first: `end` waits for its own children, and a number must not be free before that.
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found is None:
                    return
                self._bury(found.si_pid)
        except ChildProcessError:
            return

    def _bury(self, pid: int) -> None:
        for stem in self._waiting:
            if stem.process.pid == pid:
                self._waiting.remove(stem)
                self._nursery.end(stem)
                return
        if pid in self._busy and not self._hear(self._busy.pop(pid)):
            return
        os.waitpid(pid, 0)
        self._nursery.buried(pid)


def _last_words(sock: socket.socket) -> tuple[wire.Message, list[int]] | None:
    for _ in range(2):
        try:
            return wire.receive(sock)
        except ConnectionResetError:
            continue  # it died before it had read everything; the kernel says that once, and then what it had said
    return None


def _alive(stem: Stem) -> bool:
    poll = select.poll()
    poll.register(stem.sock.fileno(), select.POLLIN)
    return not poll.poll(0)


def _serves(stem: Stem) -> bool:
    """Whether it has become a guest, though we have not heard it yet: the keeper may have met it before it died."""
    if _alive(stem):
        return False
    received = _last_words(stem.sock)
    return received is not None and bool(received[0].get("ready"))


def _order(message: wire.Message, given: Given) -> Order:
    shape = message["shape"]
    return Order(
        number=message["n"],
        box_id=message["id"],
        keeper=message["keeper"],
        hostname=message["hostname"],
        shape=root.Shape.parse([shape[name] for name in root.Shape._fields]),
        claim=Claim.parse([message["claim"][name] for name in Claim._fields]),
        ceiling=Ceiling(**message["ceiling"]),
        given=given,
    )


def _weakened(without: list[str]) -> seccomp.Filter | None:
    """The filter with holes that the attack suite asks for, "seccomp:NAME" for each call that is to go unchecked."""
    allow = frozenset(name.removeprefix("seccomp:") for name in without if name.startswith("seccomp:"))
    return seccomp.Filter(seccomp.program(allow=allow)) if allow else None


def _bounds(without: list[str]) -> tuple[accounts.Bound, ...]:
    """Those of a network namespace only where the box has one: the machine's own must stay as they are."""
    if "accounts" in without:
        return ()
    known = accounts.Bounds.known()
    return (*known.user, *(() if "network namespace" in without else known.network))


def main(fd: int) -> None:
    """Make everything ready that needs no options, await them, and serve."""
    sock = socket.socket(fileno=fd)
    kernel.close_but([fd])
    # As many descriptors may be in flight between this user's processes, boxes of an ordinary user among them, before
    # we can send none. Each box gets a limit of its own, which is lower (`stages`).
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    command_line = kernel.CommandLine()
    command_line.show("hutch-spawner")
    machine = detect(keeper=os.getppid())
    filter_ = seccomp.Filter(seccomp.program())
    domain = landlock.Domain(landlock.abi())
    ranged, last_capability, masks = identity.can_map_ranges(), identity.last_capability(), root.masks()
    own_accounts = ranged and identity.can_let_boxes_own_themselves()
    gc.collect()
    gc.freeze()  # so that the collection below, for which the keeper waits, has little to look at
    received = wire.receive(sock)
    if received is None:
        return
    options = received[0]
    if "magic links" in options["without"]:
        paths.resolve_flags = 0  # inherited by every guest
    uplink = None
    if options["network"]:
        from hutch.providers.native.network.uplink import NetworkUnavailable

        try:
            uplink = _open_uplink(ranged, proving=options["proving"])
        except NetworkUnavailable as error:
            wire.send(sock, {"n": 0, "error": str(error), "remedy": error.remedy})
            return
        if options["proving"]:  # such an uplink is for no box
            uplink.close()
            wire.send(sock, {"n": 0, "controllers": machine.controllers, "reason": machine.reason})
            return
    tree = Tree(machine, options["groups"]) if machine.seats else None
    setting = Setting(
        run=options["run"],
        ranged=ranged,
        last_capability=last_capability,
        filter=_weakened(options["without"]) or filter_,
        domain=domain,
        command_line=command_line,
        masks=() if "masks" in options["without"] else masks,
        without=frozenset(options["without"]),
        bounds=_bounds(options["without"]),
        own_accounts=own_accounts and "own accounts" not in options["without"],
    )
    gc.collect()
    gc.freeze()
    gc.disable()
    spawner = Spawner(sock, Nursery(setting, tree, options["keeper"], uplink), uplink)
    try:
        found = {"controllers": machine.controllers, "reason": machine.reason}
        wire.send(sock, {"n": 0, "ranged": ranged, "pid": os.getpid(), **found})  # fails if the keeper has died
        spawner.run()
    finally:
        spawner.close()
        if uplink is not None:
            uplink.close()
        if tree is not None:
            tree.close()


def _open_uplink(ranged: bool, *, proving: bool) -> "Uplink":
    """Imported here: a spawner of boxes without a network, which is the usual one, must start fast."""
    from hutch.providers.native.network.uplink import Uplink, leave_machine_network

    porter = None if ranged else leave_machine_network()
    return Uplink(porter=porter, proving=proving)
