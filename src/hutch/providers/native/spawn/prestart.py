"""The spawner's children: cloning them, sending them programs and orders, and removing those that fail.

A prestarted child is cloned before any order: it has done everything that its template allows, and waits.
Standard library only.
"""

import contextlib
import errno
import itertools
import json
import os
import signal
import socket
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from hutch.linux import identity, kernel, processes
from hutch.linux.cgroups import Group, GroupLimits, Tree
from hutch.providers.native.layers.adoption import map_ids, unmapped
from hutch.providers.native.rootfs import root
from hutch.providers.native.spawn import wire
from hutch.providers.native.spawn.child_steps import BoxParameters, ChildPrograms, OrderDescriptors, SpawnerSettings
from hutch.providers.native.spawn.enter import EntryRequest, MountEntry, NamespaceEntry
from hutch.providers.native.spawn.program import send
from hutch.providers.native.spawn.zygote import SAME_USER, Zygote, ZygoteDied

if TYPE_CHECKING:  # only the spawner of networked boxes loads these
    from hutch.providers.native.network.links import BoxLink
    from hutch.providers.native.network.uplink import Uplink

_NAMESPACES = (
    kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWNET
)  # fmt: skip
_SHAREABLE = {"network namespace": kernel.CLONE_NEWNET, "ipc namespace": kernel.CLONE_NEWIPC}
"""Namespaces that the attack suite can leave out (`SpawnerSettings.without`) without harm to the machine."""
_BACKLOG = 64
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_LONGEST_PATH = 108


class Order(NamedTuple):
    """A keeper's request for a box."""

    number: int
    box_id: str
    keeper: str
    template: root.BoxTemplate
    hostname: str
    parameters: BoxParameters
    group_limits: GroupLimits
    descriptors: OrderDescriptors
    """Descriptors for the child only; the spawner never reads them."""
    layers: tuple[str, ...] = ()
    """The state that a fork begins with; empty for other boxes."""
    trees: tuple[int, ...] = ()
    """The mounts that hold its layers; as root all of them twice (`layers.adoption`)."""


class Child:
    """One child process, with its socket, directory and control group."""

    __slots__ = ("directory", "group", "group_limits", "namespaces", "order", "process", "slot", "sock", "template")

    def __init__(
        self, process: processes.Identity, sock: socket.socket, template: root.BoxTemplate, directory: str,
        group: Group | None, group_limits: GroupLimits,
    ) -> None:  # fmt: skip
        self.process = process
        self.sock = sock
        self.template = template
        self.directory = directory
        self.group = group
        self.group_limits = group_limits
        """The limits that its group has now."""
        self.slot: int | None = None
        self.order: Order | None = None
        self.namespaces: tuple[str, ...] = ()
        """The names of its user and mount namespaces, where Hutch is not root: the guest itself lets us in there."""

    def facts(self) -> wire.Message:
        """The fields of the box's record that describe it."""
        return {
            "pid": self.process.pid,
            "start": self.process.start,
            "boot": self.process.boot,
            "groups": list(self.group.paths) if self.group else [],
            "namespaces": list(self.namespaces),
        }


class Children:
    """Makes children and gives orders to them."""

    def __init__(
        self, settings: SpawnerSettings, tree: Tree | None, keeper: str, uplink: "Uplink | None" = None
    ) -> None:
        self._settings = settings
        self._programs = ChildPrograms(settings) if "child programs" not in settings.without else _direct_requests()
        self._zygote = Zygote(settings)
        self._tree = tree
        self._keeper = keeper
        self._uplink = uplink
        self._links: dict[int, BoxLink] = {}
        self._slots = identity.IdRanges() if settings.has_id_ranges else None
        self._taken: dict[int, int] = {}
        """The id range slots of living children, by pid."""
        self._boot = processes.boot_id()
        self._numbers = itertools.count(1)

    @property
    def has_id_ranges(self) -> bool:
        return self._settings.has_id_ranges

    @property
    def prestarts(self) -> bool:
        return "prestarted children" not in self._settings.without

    def take_trouble(self) -> str:
        """Take the problem that the keeper should hear of, if there is a new one; else ""."""
        trouble, self._zygote.trouble = self._zygote.trouble, ""
        return trouble

    def add_spare_group(self, name: str) -> None:
        """Have the next child use the control group of a box that has ended, if the keeper named one."""
        if name and self._tree is not None:
            self._tree.add_spare(name)

    def begin(self, order: Order) -> Child:
        """Make a child that performs all programs without waiting."""
        return self._begin(order.box_id, order.template, order.group_limits, order)

    def prestart(self, template: root.BoxTemplate, group_limits: GroupLimits) -> Child:
        """Make a child that waits for an order. An order with this template and these limits is served fastest."""
        return self._begin(f".stem-{os.getpid()}-{next(self._numbers)}", template, group_limits)

    def _begin(
        self, name: str, template: root.BoxTemplate, group_limits: GroupLimits, order: Order | None = None
    ) -> Child:
        try:
            return self._try(name, template, group_limits, order)
        except ZygoteDied:
            return self._try(name, template, group_limits, order)

    def _try(self, name: str, template: root.BoxTemplate, group_limits: GroupLimits, order: Order | None) -> Child:
        directory = f"{self._settings.run}/{name}"
        group = self._tree.make() if self._tree else None
        try:
            if group is not None:
                group.limit(group_limits)
            child = self._clone(template, directory, group, group_limits)
        except BaseException:
            _remove(group, directory)
            raise
        child.order = order
        try:
            self._initialise(child)
        except BaseException:
            self.end(child)
            raise
        return child

    def _clone(
        self, template: root.BoxTemplate, directory: str, group: Group | None, group_limits: GroupLimits
    ) -> Child:
        ours, theirs = wire.pair()
        try:
            listener = _make_directory(directory)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        fds = [theirs.fileno(), listener]
        try:
            spill = f"{directory}/{root.SPILL}"
            # An ordinary user's child makes the mount itself.
            fds.append(root.detach_spill(spill) if self.has_id_ranges else os.open(spill, _DIRECTORY))
            _send_first_program(ours, self._programs, group)
            cgroup = group.directory_fd() if group else None
            pid = self._clone_with(fds, cgroup)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            for fd in fds[1:]:
                os.close(fd)
            if group is not None:
                group.close()
        process = processes.Identity(pid, processes.start_time(pid) or 0, self._boot)
        return Child(process, ours, template, directory, group, group_limits)

    def _clone_with(self, fds: list[int], cgroup: int | None) -> int:
        """Clone the child, and take an id range for it if boxes have their own."""
        shared = sum(flag for name, flag in _SHAREABLE.items() if name in self._settings.without)
        flags = _NAMESPACES & ~shared
        if self._slots is None:
            return self._zygote.clone(flags, fds, cgroup)
        slot = self._slots.take()
        try:
            pid = self._zygote.clone(
                flags, fds, cgroup, identity.base(slot) if self._settings.own_accounts else SAME_USER
            )
        except OSError:
            self._slots.give_back(slot)
            raise
        self._taken[pid] = slot
        return pid

    def _initialise(self, child: Child) -> None:
        """Write a new child's id maps and its `box` file, and send it its programs."""
        userns = None
        fds: list[int] = []
        try:
            if self._slots is None:
                privileged = "capabilities" in self._settings.without
                identity.single_maps(0 if privileged else identity.USER).write(child.process.pid)
                own = f"/proc/{child.process.pid}/ns"
                child.namespaces = (os.readlink(f"{own}/user"), os.readlink(f"{own}/mnt"))
            else:
                child.slot = self._taken[child.process.pid]
                identity.range_maps(child.slot).write(child.process.pid)
                userns = os.open(f"/proc/{child.process.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
                # Only root may open the image through the box's ids. An ordinary user's child opens its own.
                for source in root.template_sources(child.template):
                    fds.append(root.detach(source, userns))
            self._write_plan(child)
            resolv_conf = self._connect(child)
            host_mounts = child.order.parameters.host_mounts if child.order and not self.has_id_ranges else ()
            _send_program(child, self._programs.begin(child.template, host_mounts), fds)
            if resolv_conf:
                _send_program(child, self._programs.name_servers(resolv_conf, host_mounts))
            if child.order is not None:
                self._send_order(child, child.order)
            else:
                _send_program(child, self._programs.wait())
        finally:
            for fd in (*fds, *([] if userns is None else [userns])):
                os.close(fd)

    def _connect(self, child: Child) -> str:
        """Connect the box's network namespace, if it has a network, and return the content of its resolv.conf."""
        if child.template.network == "off":
            return ""
        if self._uplink is None:
            raise OSError(errno.ENETDOWN, "this spawner has no uplink", child.directory)
        netns = os.open(f"/proc/{child.process.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            link = self._links[child.process.pid] = self._uplink.connect(netns, child.template.allowed)
        finally:
            os.close(netns)
        return link.resolv_conf

    def release(self, pid: int) -> None:
        """Release the id range and the network link of a child whose process is gone."""
        slot = self._taken.pop(pid, None)
        if slot is not None and self._slots is not None:
            self._slots.give_back(slot)
        link = self._links.pop(pid, None)
        if link is not None and self._uplink is not None:
            self._uplink.disconnect(link)

    def enter(self, entry: EntryRequest, groups: list[str]) -> socket.socket:
        """Fork a process that starts a root guest in a box. It reports on the returned socket."""
        group = self._tree.open(groups) if self._tree and groups else None
        ours, theirs = wire.pair()
        if os.fork() == 0:
            NamespaceEntry(self._settings, entry, theirs).enter(group)
        theirs.close()
        if group is not None:
            group.close()
        return ours

    def show(self, process: processes.Identity, host_mount: root.HostMount) -> socket.socket:
        """Fork a process that mounts a directory in a running box. It reports on the returned socket."""
        ours, theirs = wire.pair()
        if os.fork() == 0:
            MountEntry(process, host_mount, theirs).show()
        theirs.close()
        return ours

    def assign(self, child: Child, order: Order) -> None:
        """Give `order` to a prestarted child.

        The limits hold when this returns. The answer to the keeper must come later, because the keeper lets a command
        run as soon as it has heard from us and from the guest.
        """
        child.order = order
        directory = f"{self._settings.run}/{order.box_id}"
        os.rename(child.directory, directory)
        child.directory = directory
        self._send_order(child, order)
        if child.group is not None and child.group_limits != order.group_limits:
            child.group.limit(order.group_limits)
            child.group_limits = order.group_limits

    def _send_order(self, child: Child, order: Order) -> None:
        """Send the order to a child that has performed `begin` or is about to."""
        if order.layers:
            self._send_layers(child, order)
        host_mounts = self._host_mounts(child, order.parameters)
        try:
            _send_program(
                child,
                self._programs.finish(child.template, order.parameters, order.hostname),
                [*order.descriptors, *host_mounts],
            )
        finally:
            for fd in host_mounts:
                os.close(fd)

    def _send_layers(self, child: Child, order: Order) -> None:
        """Have the child adopt the layers that a fork begins with. Only root may map their ids, from out here."""
        sources = len(order.trees) // (2 if self.has_id_ranges else 1)
        if self.has_id_ranges and map_ids(order.trees[:sources], child.process.pid):
            raise unmapped()
        early = order.parameters.host_mounts if not self.has_id_ranges else ()
        _send_program(child, self._programs.adopt(order.layers, early, sources), order.trees)

    def end(self, child: Child) -> None:
        """Kill the child and remove everything that was made for it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.process.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child.process.pid, 0)
        self.release(child.process.pid)
        child.sock.close()
        _remove(child.group, child.directory)

    def close(self) -> None:
        self._zygote.close()
        if self._slots is not None:
            self._slots.close()

    def _host_mounts(self, child: Child, parameters: BoxParameters) -> list[int]:
        if child.slot is None:
            return []
        trees: list[int] = []
        try:
            owned = partial(identity.owner_namespace, slot=child.slot)
            for host_mount in parameters.host_mounts:
                # A user namespace for the owner's ids costs a fork, which public files do not need.
                trees.append(root.detach_host_mount(host_mount, None if host_mount.public else owned))
        except BaseException:
            for fd in trees:
                os.close(fd)
            raise
        return trees

    def _write_plan(self, child: Child) -> None:
        """Write the file by which the child is found after a crash, before it can become a box."""
        data = json.dumps({"keeper": self._keeper, "store": child.template.store, **child.facts()}).encode()
        fd = os.open(f"{child.directory}/box", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)


def _direct_requests() -> ChildPrograms:
    """The import is local because only the ablation bench needs it."""
    from hutch.providers.native.spawn.direct import Requests

    return cast(ChildPrograms, Requests())


def _send_program(child: Child, program: bytes, fds: Sequence[int] = ()) -> None:
    """Send a program. If the child has failed already, its own report is the answer to its order."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        send(child.sock, program, fds)


def _send_first_program(sock: socket.socket, programs: ChildPrograms, group: Group | None) -> None:
    """Send a child its first program, with the open files of its control groups."""
    files: list[int] = []
    try:
        for path in group.tasks_files() if group else ():
            files.append(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
        send(sock, programs.enter(len(files)), files)
    finally:
        for fd in files:
            os.close(fd)


def _make_directory(path: str) -> int:
    """Make a box's directory on the host, and return its guest's listening socket."""
    os.mkdir(path, 0o700)
    spill = f"{path}/{root.SPILL}"
    os.mkdir(spill)
    # Every user of the box may write here and remove only own files. On the host, the directory above is closed.
    os.chmod(spill, 0o1777)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        _bind(listener, path)
        listener.listen(_BACKLOG)
        return listener.detach()


def _bind(listener: socket.socket, directory: str) -> None:
    """Bind the guest's socket. The path of a Unix socket has 108 bytes at most, so a longer one goes through /proc."""
    path = f"{directory}/guest"
    if len(os.fsencode(path)) < _LONGEST_PATH:
        listener.bind(path)
        return
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{fd}/guest")
    finally:
        os.close(fd)


def _remove(group: Group | None, directory: str) -> None:
    if group is not None:
        group.remove()
    for name in ("guest", "box"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{directory}/{name}")
    for path in (f"{directory}/{root.SPILL}", directory):
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(path)
