"""Boxes before they are ready, as their parent sees them: cloned, mapped, placed, claimed, or ended without a trace.

A *stem* is a child begun before any order: it has done everything that its shape allows, and waits.
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
from hutch.linux.cgroups import Ceiling, Group, Tree
from hutch.providers.native.rootfs import root
from hutch.providers.native.spawn import wire
from hutch.providers.native.spawn.child_steps import Claim, Given, Setting, Stages
from hutch.providers.native.spawn.enter import Entry, MountSurgeon, Surgeon
from hutch.providers.native.spawn.program import send
from hutch.providers.native.spawn.zygote import SELF, Zygote, ZygoteDied

if TYPE_CHECKING:  # loaded by the spawner of networked boxes only
    from hutch.providers.native.network.links import Wired
    from hutch.providers.native.network.uplink import Uplink

_NAMESPACES = (
    kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWNET
)  # fmt: skip
_SHAREABLE = {"network namespace": kernel.CLONE_NEWNET, "ipc namespace": kernel.CLONE_NEWIPC}
"""Namespaces that the attack suite can leave out (`Setting.without`) without any harm to the machine."""
_BACKLOG = 64
_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_LONGEST_PATH = 108


class Order(NamedTuple):
    """A keeper's request, as the spawner needs it."""

    number: int
    box_id: str
    keeper: str
    shape: root.Shape
    hostname: str
    claim: Claim
    ceiling: Ceiling
    given: Given
    """Descriptors for the child alone; the spawner never reads them."""


class Stem:
    """One child and what belongs to it."""

    __slots__ = ("ceiling", "directory", "group", "order", "process", "shape", "slot", "sock")

    def __init__(
        self, process: processes.Identity, sock: socket.socket, shape: root.Shape, directory: str, group: Group | None,
        ceiling: Ceiling,
    ) -> None:  # fmt: skip
        self.process = process
        self.sock = sock
        self.shape = shape
        self.directory = directory
        self.group = group
        self.ceiling = ceiling
        """What its group is held to."""
        self.slot: int | None = None
        self.order: Order | None = None

    def facts(self) -> wire.Message:
        """What the box's record says of it."""
        return {
            "pid": self.process.pid,
            "start": self.process.start,
            "boot": self.process.boot,
            "groups": list(self.group.paths) if self.group else [],
        }


class Nursery:
    """Makes children and hands orders to them."""

    def __init__(self, setting: Setting, tree: Tree | None, keeper: str, uplink: "Uplink | None" = None) -> None:
        self._setting = setting
        self._stages = Stages(setting) if "child programs" not in setting.without else _direct_requests()
        self._zygote = Zygote(setting)
        self._tree = tree
        self._keeper = keeper
        self._uplink = uplink
        self._wired: dict[int, Wired] = {}
        self._slots = identity.Slots() if setting.ranged else None
        self._taken: dict[int, int] = {}
        """The slots of living children, by pid."""
        self._boot = processes.boot_id()
        self._numbers = itertools.count(1)

    @property
    def ranged(self) -> bool:
        return self._setting.ranged

    @property
    def prestarts(self) -> bool:
        return "prestarted children" not in self._setting.without

    def take_trouble(self) -> str:
        """What has become known since this was last asked, and the keeper should hear of; "" if nothing."""
        trouble, self._zygote.trouble = self._zygote.trouble, ""
        return trouble

    def begin(self, order: Order) -> Stem:
        """A new child that goes through to the end."""
        return self._begin(order.box_id, order.shape, order.ceiling, order)

    def begin_ahead(self, shape: root.Shape, ceiling: Ceiling) -> Stem:
        """A new child that waits for an order; one of this shape and ceiling has the least to wait for then."""
        return self._begin(f".stem-{os.getpid()}-{next(self._numbers)}", shape, ceiling)

    def _begin(self, name: str, shape: root.Shape, ceiling: Ceiling, order: Order | None = None) -> Stem:
        try:
            return self._try(name, shape, ceiling, order)
        except ZygoteDied:
            return self._try(name, shape, ceiling, order)

    def _try(self, name: str, shape: root.Shape, ceiling: Ceiling, order: Order | None) -> Stem:
        directory = f"{self._setting.run}/{name}"
        group = self._tree.make() if self._tree else None
        try:
            if group is not None:
                group.limit(ceiling)
            stem = self._clone(shape, directory, group, ceiling)
        except BaseException:
            _remove(group, directory)
            raise
        stem.order = order
        try:
            self._introduce(stem)
        except BaseException:
            self.end(stem)
            raise
        return stem

    def _clone(self, shape: root.Shape, directory: str, group: Group | None, ceiling: Ceiling) -> Stem:
        ours, theirs = wire.pair()
        try:
            listener = _make_directory(directory)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        given = [theirs.fileno(), listener]
        try:
            spill = f"{directory}/{root.SPILL}"
            # An ordinary user's child has to make the mount itself.
            given.append(root.detach_spill(spill) if self.ranged else os.open(spill, _PLACE))
            _let_in(ours, self._stages, group)
            cgroup = group.directory_fd() if group else None
            pid = self._clone_with(given, cgroup)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            for fd in given[1:]:
                os.close(fd)
            if group is not None:
                group.close()
        process = processes.Identity(pid, processes.start_time(pid) or 0, self._boot)
        return Stem(process, ours, shape, directory, group, ceiling)

    def _clone_with(self, fds: list[int], cgroup: int | None) -> int:
        """The clone itself; with it the child gets its range of ids, if it is to have one."""
        shared = sum(flag for name, flag in _SHAREABLE.items() if name in self._setting.without)
        flags = _NAMESPACES & ~shared
        if self._slots is None:
            return self._zygote.clone(flags, fds, cgroup)
        slot = self._slots.take()
        try:
            pid = self._zygote.clone(flags, fds, cgroup, identity.base(slot) if self._setting.own_accounts else SELF)
        except OSError:
            self._slots.give_back(slot)
            raise
        self._taken[pid] = slot
        return pid

    def _introduce(self, stem: Stem) -> None:
        """Give a new child its ids and its image, after writing down how it can be found."""
        userns = None
        fds: list[int] = []
        try:
            if self._slots is None:
                privileged = "capabilities" in self._setting.without
                identity.single_maps(0 if privileged else identity.USER).write(stem.process.pid)
            else:
                stem.slot = self._taken[stem.process.pid]
                identity.range_maps(stem.slot).write(stem.process.pid)
                userns = os.open(f"/proc/{stem.process.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
                # The image through the box's ids: only we may do that. An ordinary user's child opens its own.
                for source in root.shape_sources(stem.shape):
                    fds.append(root.detach(source, userns))
            self._write_plan(stem)
            resolv_conf = self._connect(stem)
            extras = stem.order.claim.extras if stem.order and not self.ranged else ()
            _tell(stem, self._stages.begin(stem.shape, extras), fds)
            if resolv_conf:
                _tell(stem, self._stages.name_servers(resolv_conf, extras))
            if stem.order is not None:
                self._give(stem, stem.order)
            else:
                _tell(stem, self._stages.wait())
        finally:
            for fd in (*fds, *([] if userns is None else [userns])):
                os.close(fd)

    def _connect(self, stem: Stem) -> str:
        """Wire the box's network namespace, if it is to have a network; the content of its resolv.conf."""
        if stem.shape.network == "off":
            return ""
        if self._uplink is None:
            raise OSError(errno.ENETDOWN, "this spawner has no uplink", stem.directory)
        netns = os.open(f"/proc/{stem.process.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            wired = self._wired[stem.process.pid] = self._uplink.wire(netns, stem.shape.allowed)
        finally:
            os.close(netns)
        return wired.resolv_conf

    def buried(self, pid: int) -> None:
        """A child's process is gone: nobody has its ids any more."""
        slot = self._taken.pop(pid, None)
        if slot is not None and self._slots is not None:
            self._slots.give_back(slot)
        wired = self._wired.pop(pid, None)
        if wired is not None and self._uplink is not None:
            self._uplink.unwire(wired)

    def enter(self, entry: Entry, groups: list[str]) -> socket.socket:
        """Send a surgeon into a box; its news come on the socket."""
        group = self._tree.open(groups) if self._tree and groups else None
        ours, theirs = wire.pair()
        if os.fork() == 0:
            Surgeon(self._setting, entry, theirs).enter(group)
        theirs.close()
        if group is not None:
            group.close()
        return ours

    def show(self, process: processes.Identity, extra: root.Extra) -> socket.socket:
        """Have a directory mounted in a box that lives; news of it come on the socket."""
        ours, theirs = wire.pair()
        if os.fork() == 0:
            MountSurgeon(process, extra, theirs).show()
        theirs.close()
        return ours

    def claim(self, stem: Stem, order: Order) -> None:
        """Make the box of `order` out of a waiting stem. Its limits hold when this returns: only then may the keeper
        be told of it, who would let a command run as soon as it has heard of us and of the guest."""
        stem.order = order
        directory = f"{self._setting.run}/{order.box_id}"
        os.rename(stem.directory, directory)
        stem.directory = directory
        self._give(stem, order)
        if stem.group is not None and stem.ceiling != order.ceiling:
            stem.group.limit(order.ceiling)
            stem.ceiling = order.ceiling

    def _give(self, stem: Stem, order: Order) -> None:
        """The order, to a child that has begun or is about to."""
        extras = self._extras(stem, order.claim)
        try:
            _tell(stem, self._stages.finish(stem.shape, order.claim, order.hostname), [*order.given, *extras])
        finally:
            for fd in extras:
                os.close(fd)

    def end(self, stem: Stem) -> None:
        """Kill the child and remove what was made for it; nothing of it is left when this returns."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(stem.process.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(stem.process.pid, 0)
        self.buried(stem.process.pid)
        stem.sock.close()
        _remove(stem.group, stem.directory)

    def close(self) -> None:
        self._zygote.close()
        if self._slots is not None:
            self._slots.close()

    def _extras(self, stem: Stem, claim: Claim) -> list[int]:
        if stem.slot is None:
            return []
        trees: list[int] = []
        try:
            owned = partial(identity.owner_namespace, slot=stem.slot)
            for extra in claim.extras:
                # A namespace for its owner's ids costs a fork.
                trees.append(root.detach_extra(extra, None if extra.public else owned))
        except BaseException:
            for fd in trees:
                os.close(fd)
            raise
        return trees

    def _write_plan(self, stem: Stem) -> None:
        """Before the child can become a box: after a crash this file leads to it."""
        data = json.dumps({"keeper": self._keeper, "store": stem.shape.store, **stem.facts()}).encode()
        fd = os.open(f"{stem.directory}/box", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)


def _direct_requests() -> Stages:
    """Imported here because only the ablation bench asks for it."""
    from hutch.providers.native.spawn.direct import Requests

    return cast(Stages, Requests())


def _tell(stem: Stem, program: bytes, fds: Sequence[int] = ()) -> None:
    """A child that has failed already has said why, and that is the answer to its order."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        send(stem.sock, program, fds)


def _let_in(sock: socket.socket, stages: Stages, group: Group | None) -> None:
    """Send a child its first program, and with it the files of its control groups."""
    files: list[int] = []
    try:
        for path in group.entrances() if group else ():
            files.append(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
        send(sock, stages.enter(len(files)), files)
    finally:
        for fd in files:
            os.close(fd)


def _make_directory(path: str) -> int:
    """A box's directory on the host, with the one for spilled output; returns its guest's listening socket."""
    os.mkdir(path, 0o700)
    spill = f"{path}/{root.SPILL}"
    os.mkdir(spill)
    # For every user of the box, and each removes what is his own; on the host the directory above is closed.
    os.chmod(spill, 0o1777)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        _bind(listener, path)
        listener.listen(_BACKLOG)
        return listener.detach()


def _bind(listener: socket.socket, directory: str) -> None:
    """A Unix socket's path has 108 bytes at most; a longer one is reached through the directory's descriptor."""
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
