"""The spawner: a fork server for boxes, with one thread, few imports and an empty environment.

It ends with its keeper, never runs a user's code and never reads what a box wrote. It answers requests in any order: a
box is started at once, and its outcome is reported later. While idle, it prestarts a few children of the last template.
Standard library only.
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
from hutch.linux.cgroups import GroupLimits, Tree, detect
from hutch.providers.native.rootfs import root
from hutch.providers.native.spawn import kernel_limits, wire
from hutch.providers.native.spawn.child_steps import BoxParameters, OrderDescriptors, SpawnerSettings
from hutch.providers.native.spawn.enter import EntryRequest
from hutch.providers.native.spawn.layer_workers import LayerWorkers
from hutch.providers.native.spawn.prestart import Child, Children, Order

if TYPE_CHECKING:
    from hutch.providers.native.network.uplink import Uplink

PRESTARTED_CHILDREN = 4
"""How many prestarted children wait. Each takes about 1.7 MB, all that its box will need."""
FIRST_PRESTART_DELAY = 0.0005
"""Seconds without an event before a child is prestarted where none is left, so that orders come first."""
NEXT_PRESTART_DELAY = 0.02
"""The same while some are left. It is longer, so that the first command of a new box has the processors to itself."""
PRESTART_TIMEOUT = 30.0
"""Seconds without an order after which prestarted children are ended, so that an idle spawner costs nothing."""


class Spawner:
    """The event loop: requests of the keeper on one socket, reports of children on theirs."""

    def __init__(self, sock: socket.socket, children: Children, uplink: "Uplink | None") -> None:
        self._sock = sock
        self._uplink = uplink
        self._children = children
        self._epoll = select.epoll()
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        if uplink is not None:
            self._epoll.register(uplink.fileno(), select.EPOLLIN)
        self._wakeup_reader, wakeup_writer = socket.socketpair()
        wakeup_writer.setblocking(False)
        self._wakeup_reader.setblocking(False)
        # A root guest becomes an orphan of our pid namespace, because the process that entered the box ends. The
        # machine's init may be slow to reap it, and the box's pid namespace cannot end before that.
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_writer.fileno(), warn_on_full_buffer=False)
        self._wakeup_writer = wakeup_writer
        self._epoll.register(self._wakeup_reader.fileno(), select.EPOLLIN)
        self._starting: dict[int, Child] = {}
        """Children with an order, by pid, until we have seen that they became guests.

        The loop does not watch their sockets: being woken by each that is ready would take the processor from it and
        from its keeper. A child that fails ends, which the loop notices. The others are checked while idle.
        """
        self._entering: dict[int, tuple[socket.socket, int]] = {}
        """Sockets of processes that enter a box, with the number of the request."""
        self._layer_workers = LayerWorkers(has_id_ranges=children.has_id_ranges)
        self._prestarted: list[Child] = []
        self._last_order: Order | None = None
        """The newest order whose template children may be prestarted from."""
        self._prestarting = False
        self._last_order_at = 0.0

    def run(self) -> None:
        while True:
            events = self._epoll.poll(self._timeout())
            if not events:
                self._idle()
            for fd, _ in events:
                if fd == self._sock.fileno():
                    if not self._take_request():
                        return
                elif fd == self._wakeup_reader.fileno():
                    self._reap()
                elif self._uplink is not None and fd == self._uplink.fileno():
                    if not self._uplink.handle():
                        # This spawner can connect no more boxes. Its boxes stay, and the keeper starts another one.
                        self._answer(0, {"ending": self._uplink.broken})
                        return
                else:
                    self._receive_entry(fd)

    def close(self) -> None:
        """End the children that have not become guests. Boxes that are ready stay."""
        for child in (*self._prestarted, *self._starting.values()):
            if not _became_guest(child):
                self._children.end(child)
        self._prestarted.clear()
        self._layer_workers.close()
        self._starting.clear()  # the keeper notices our end
        self._reap()  # boxes that have just ended give their network links back
        self._children.close()

    def _timeout(self) -> float:
        children, workers = self._children_timeout(), self._layer_workers.timeout()
        return max(children, workers) if min(children, workers) < 0 else min(children, workers)

    def _children_timeout(self) -> float:
        if not self._prestarting:
            return -1
        if len(self._prestarted) < PRESTARTED_CHILDREN:
            return NEXT_PRESTART_DELAY if self._prestarted else FIRST_PRESTART_DELAY
        return max(0.0, self._last_order_at + PRESTART_TIMEOUT - time.monotonic())

    def _idle(self) -> None:
        """Prestart one child or worker, or end them after a long time in which they were not needed."""
        self._check_starting()
        if self._starting:
            return  # a child that somebody waits for needs the processors more
        if self._layer_workers.idle() or not self._prestarting:
            return
        if time.monotonic() - self._last_order_at >= PRESTART_TIMEOUT:
            self._drop_prestarted()
            self._prestarting = False
        elif len(self._prestarted) < PRESTARTED_CHILDREN and self._last_order is not None:
            try:
                self._prestarted.append(
                    self._children.prestart(self._last_order.template, self._last_order.group_limits)
                )
            except Exception as error:  # the task boundary: boxes are then made without prestarted children
                self._prestarting = False
                self._answer(0, {"trouble": f"it can prestart no children: {str(error) or repr(error)}"})
            self._report_trouble()

    def _take_request(self) -> bool:
        received = wire.receive(self._sock)
        if received is None:
            return False
        message, fds = received
        try:
            if message["op"] == "create":
                self._create(message, fds)
            elif message["op"] == "enter":
                self._enter(message, fds[0])
            elif message["op"] == "show":
                process = processes.Identity(message["pid"], message["start"], message["boot"])
                self._await_entry(self._children.show(process, root.HostMount(*message["host_mount"])), message["n"])
            elif message["op"] == "layers":
                self._layer_workers.begin(message, fds)
            else:
                raise ValueError(f"unknown operation {message['op']!r}")
        except Exception as error:  # the task boundary: whatever went wrong is the answer to this request
            self._answer(message["n"], wire.error_message("begin", error))
        finally:
            for fd in fds:
                os.close(fd)
        self._report_trouble()
        return True

    def _create(self, message: wire.Message, fds: list[int]) -> None:
        order = _parse_order(message, fds)
        self._children.add_spare_group(message["spare_group"])
        child = self._prestarted_for(order)
        if child is None:
            child = self._children.begin(order)
        else:
            try:
                self._children.assign(child, order)
            except BaseException:
                self._children.end(child)
                raise
        try:
            self._report_created(child)
        except OSError:
            # The keeper died after its request. Nobody knows of this box, and its successor may have listed boxes
            # already.
            self._children.end(child)
            raise
        self._starting[child.process.pid] = child
        self._last_order_at = time.monotonic()
        if order.template.store is not None:
            return
        # A template that was asked for only once (`hutch run`) is not worth a prestarted child.
        repeated = self._last_order is not None and order.template == self._last_order.template
        self._prestarting = repeated and self._children.prestarts
        if not self._prestarting:
            self._drop_prestarted()
        self._last_order = order

    def _enter(self, message: wire.Message, options: int) -> None:
        process = processes.Identity(message["pid"], message["start"], message["boot"])
        entry = EntryRequest(process, message["directory"], message["socket_name"], message["uid"], options)
        self._await_entry(self._children.enter(entry, message["groups"]), message["n"])

    def _await_entry(self, sock: socket.socket, number: int) -> None:
        self._entering[sock.fileno()] = (sock, number)
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _report_created(self, child: Child) -> None:
        """Answer at once that the process exists. The guest itself reports that it serves; we report if it fails."""
        assert child.order is not None
        facts = child.facts()
        if self._uplink is not None and child.template.network != "off":
            facts["uplink"] = self._uplink.tag
        self._answer(child.order.number, {"box": facts})

    def _report_trouble(self) -> None:
        """Report a problem that does not keep boxes from being made, and would go unnoticed otherwise."""
        if trouble := self._children.take_trouble():
            self._answer(0, {"trouble": trouble})

    def _prestarted_for(self, order: Order) -> Child | None:
        if order.template.store or (order.parameters.host_mounts and not self._children.has_id_ranges):
            return None  # an ordinary user's child must open its mounts before it leaves the host's mounts
        while self._prestarted and self._prestarted[0].template == order.template:
            child = self._prestarted.pop(0)
            if _is_silent(child):
                return child
            self._children.end(child)
        return None

    def _drop_prestarted(self) -> None:
        while self._prestarted:
            self._children.end(self._prestarted.pop())

    def _check_starting(self) -> None:
        """Handle the children that have reported: as guests, or with a failure."""
        for pid, child in tuple(self._starting.items()):
            if not _is_silent(child):
                del self._starting[pid]
                self._finish_start(child)

    def _finish_start(self, child: Child) -> bool:
        """Read a child's report and return whether it became a guest. If not, remove it and answer its order."""
        received = _read_report(child.sock)
        if received is not None and received[0].get("ready"):
            child.sock.close()
            return True
        self._children.end(child)
        assert child.order is not None
        died = {"step": "build", "error": "the box's first process died (perhaps out of memory)", "errno": ""}
        self._answer(child.order.number, received[0] if received else died)
        return False

    def _receive_entry(self, fd: int) -> None:
        sock, number = self._entering.pop(fd)
        self._epoll.unregister(fd)
        received = _read_report(sock)
        sock.close()
        died = {"step": "enter", "error": "the process that entered the box died", "errno": ""}
        fds = received[1] if received else []
        try:
            self._answer(number, received[0] if received else died, fds)
        finally:
            for each in fds:
                os.close(each)

    def _answer(self, number: int, message: dict[str, Any], fds: list[int] | tuple[int, ...] = ()) -> None:
        wire.send(self._sock, {"n": number, **message}, fds)

    def _reap(self) -> None:
        try:
            while self._wakeup_reader.recv(4096):
                pass
        except BlockingIOError:
            pass
        try:
            while True:
                # Look without reaping: `Children.end` reaps its own child, and the pid must not be reused before that.
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found is None:
                    return
                self._handle_exit(found.si_pid)
        except ChildProcessError:
            return

    def _handle_exit(self, pid: int) -> None:
        for child in self._prestarted:
            if child.process.pid == pid:
                self._prestarted.remove(child)
                self._children.end(child)
                return
        if pid in self._starting and not self._finish_start(self._starting.pop(pid)):
            return
        os.waitpid(pid, 0)
        self._children.release(pid)


def _read_report(sock: socket.socket) -> tuple[wire.Message, list[int]] | None:
    for _ in range(2):
        try:
            return wire.receive(sock)
        except ConnectionResetError:
            continue  # it died with unread input: the kernel reports that once, and then delivers its message
    return None


def _is_silent(child: Child) -> bool:
    poll = select.poll()
    poll.register(child.sock.fileno(), select.POLLIN)
    return not poll.poll(0)


def _became_guest(child: Child) -> bool:
    """Whether the child has become a guest since we last looked: the keeper may already use it."""
    if _is_silent(child):
        return False
    received = _read_report(child.sock)
    return received is not None and bool(received[0].get("ready"))


def _parse_order(message: wire.Message, fds: list[int]) -> Order:
    template = message["template"]
    own = len(OrderDescriptors._fields)
    return Order(
        number=message["n"],
        box_id=message["id"],
        keeper=message["keeper"],
        hostname=message["hostname"],
        template=root.BoxTemplate.parse([template[name] for name in root.BoxTemplate._fields]),
        parameters=BoxParameters.parse([message["parameters"][name] for name in BoxParameters._fields]),
        group_limits=GroupLimits(**message["group_limits"]),
        descriptors=OrderDescriptors(*fds[:own]),
        layers=tuple(message.get("layers", ())),
        trees=tuple(fds[own:]),
    )


def _filter_with_holes(without: list[str]) -> seccomp.Filter | None:
    """The filter without the checks that the attack suite leaves out ("seccomp:NAME" for each call), if any."""
    allow = frozenset(name.removeprefix("seccomp:") for name in without if name.startswith("seccomp:"))
    return seccomp.Filter(seccomp.program(allow=allow)) if allow else None


def _sysctls(without: list[str]) -> tuple[kernel_limits.Sysctl, ...]:
    """The sysctls of a box. Those of a network namespace only if the box has its own: the machine's must not change."""
    if "accounts" in without:
        return ()
    known = kernel_limits.NamespaceLimits.known()
    return (*known.user, *(() if "network namespace" in without else known.network))


def main(fd: int) -> None:
    """Prepare all that needs no options, wait for them, and serve."""
    sock = socket.socket(fileno=fd)
    kernel.close_all_but([fd])
    # We can send descriptors only while this user's processes, boxes of an ordinary user among them, have fewer than
    # this limit in flight. Each box gets a lower limit (`child_steps`).
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    command_line = kernel.CommandLine()
    command_line.show("hutch-spawner")
    machine = detect(keeper=os.getppid())
    filter_ = seccomp.Filter(seccomp.program())
    domain = landlock.Domain(landlock.abi())
    has_id_ranges, last_capability, masks = identity.can_map_ranges(), identity.last_capability(), root.masks()
    own_accounts = has_id_ranges and identity.can_control_foreign_namespaces()
    gc.collect()
    gc.freeze()  # so that the collection below, for which the keeper waits, has little to do
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
            uplink = _open_uplink(has_id_ranges, testing=options["testing"])
        except NetworkUnavailable as error:
            wire.send(sock, {"n": 0, "error": str(error), "remedy": error.remedy})
            return
        if options["testing"]:  # such an uplink never serves a box
            uplink.close()
            wire.send(sock, {"n": 0, "controllers": machine.controllers, "reason": machine.reason})
            return
    tree = Tree(machine, options["groups"]) if machine.hierarchies else None
    settings = SpawnerSettings(
        run=options["run"],
        has_id_ranges=has_id_ranges,
        last_capability=last_capability,
        filter=_filter_with_holes(options["without"]) or filter_,
        domain=domain,
        command_line=command_line,
        masks=() if "masks" in options["without"] else masks,
        without=frozenset(options["without"]),
        sysctls=_sysctls(options["without"]),
        own_accounts=own_accounts and "own accounts" not in options["without"],
    )
    gc.collect()
    gc.freeze()
    gc.disable()
    spawner = Spawner(sock, Children(settings, tree, options["keeper"], uplink), uplink)
    try:
        found = {"controllers": machine.controllers, "reason": machine.reason}
        wire.send(
            sock, {"n": 0, "has_id_ranges": has_id_ranges, "pid": os.getpid(), **found}
        )  # fails if the keeper has died
        spawner.run()
    finally:
        spawner.close()
        if uplink is not None:
            uplink.close()
        if tree is not None:
            tree.close()


def _open_uplink(has_id_ranges: bool, *, testing: bool) -> "Uplink":
    """Open the uplink. The import is local, because a spawner of boxes without a network must start fast."""
    from hutch.providers.native.network.uplink import Uplink, leave_machine_network

    helper = None if has_id_ranges else leave_machine_network()
    return Uplink(helper=helper, testing=testing)
