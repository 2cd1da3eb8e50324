"""Boxes before they are ready, as their parent sees them: cloned, mapped, placed, claimed, or ended without a trace.

A *stem* is a child begun before any order: it has done everything that its shape allows and waits. Standard library only.
"""

import contextlib
import json
import os
import signal
import socket
from dataclasses import dataclass, field

from hutch.providers.native import identity, kernel, processes, root, wire
from hutch.providers.native.birth import Child, Claim, Setting
from hutch.providers.native.cgroups import Ceiling, Group, Tree

_NAMESPACES = (
    kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWNET
)  # fmt: skip


@dataclass(slots=True)
class Order:
    """A keeper's request, as the spawner needs it."""

    number: int
    box_id: str
    keeper: str
    directory: str
    shape: root.Shape
    claim: Claim
    ceiling: Ceiling
    fds: list[int]
    """Listener and options; the spawner never reads them."""


@dataclass(slots=True)
class Stem:
    """One child and what belongs to it."""

    process: processes.Identity
    sock: socket.socket
    shape: root.Shape
    group: Group | None
    slot: int | None
    order: Order | None = None
    userns: int | None = None
    errors: list[wire.Message] = field(default_factory=list)

    def facts(self) -> wire.Message:
        """What the box's record says of it."""
        return {
            "pid": self.process.pid,
            "start": self.process.start,
            "boot": self.process.boot,
            "groups": list(self.group.paths) if self.group else [],
            "slot": self.slot,
        }


class Nursery:
    """Makes children and hands orders to them."""

    def __init__(self, setting: Setting, tree: Tree | None) -> None:
        self._setting = setting
        self._tree = tree
        self._slots = identity.Slots() if setting.ranged else None
        self._boot = processes.boot_id()

    @property
    def ranged(self) -> bool:
        return self._setting.ranged

    def begin(self, shape: root.Shape, order: Order | None = None) -> Stem:
        """A new child of this shape; with an order it goes through to the end, else it waits for one."""
        group = self._tree.make() if self._tree else None
        spill = -1
        try:
            if order is not None:
                if group is not None:
                    group.limit(order.ceiling)
                spill = self._make_spill(order.directory)
            ours, theirs = wire.pair()
            cgroup = group.directory_fd() if group else None
            pid = kernel.clone(_NAMESPACES, cgroup)
            if pid == 0:
                fds = [*order.fds, spill] if order else []
                Child(self._setting, shape, theirs).live(group, order.claim if order else None, fds)
            theirs.close()
        except BaseException:
            if group is not None:
                group.remove()
            raise
        finally:
            if spill >= 0:
                os.close(spill)
        if group is not None:
            group.close()
        process = processes.Identity(pid, processes.start_time(pid) or 0, self._boot)
        stem = Stem(process, ours, shape, group, None, order)
        try:
            self._map(stem)
            trees = self._trees(stem)
            extras = self._extras(stem, order.claim) if order else []
            try:
                if order is not None:
                    self._own_spill(stem, order.directory)
                    self._write_plan(stem, order)
                wire.send(ours, {}, [*trees, *extras])
            finally:
                for fd in (*trees, *extras):
                    os.close(fd)
        except BaseException:
            self.end(stem)
            raise
        return stem

    def claim(self, stem: Stem, order: Order) -> None:
        """Make the box of `order` out of a waiting stem."""
        stem.order = order
        if stem.group is not None:
            stem.group.limit(order.ceiling)
        spill = self._make_spill(order.directory)
        extras: list[int] = []
        try:
            self._own_spill(stem, order.directory)
            extras = self._extras(stem, order.claim)
            self._write_plan(stem, order)
            wire.send(stem.sock, _plain(order.claim), [*order.fds, spill, *extras])
        finally:
            for fd in (spill, *extras):
                os.close(fd)

    def end(self, stem: Stem) -> None:
        """Kill the child and remove what was made for it; nothing of it is left when this returns."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(stem.process.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(stem.process.pid, 0)
        self.forget(stem)
        if stem.group is not None:
            stem.group.remove()
        if stem.slot is not None:
            identity.give_back(stem.slot, stem.process)

    def forget(self, stem: Stem) -> None:
        """The box is ready: from now on its record is what leads to it."""
        stem.sock.close()
        if stem.userns is not None:
            os.close(stem.userns)
            stem.userns = None

    def _map(self, stem: Stem) -> None:
        if self._slots is None:
            identity.single_maps().write(stem.process.pid)
            return
        stem.slot = self._slots.take(stem.process)
        identity.range_maps(stem.slot).write(stem.process.pid)
        stem.userns = os.open(f"/proc/{stem.process.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)

    def _trees(self, stem: Stem) -> list[int]:
        """The image through the box's ids. Only we may do that; an ordinary user's child opens its own."""
        if stem.userns is None:
            return []
        trees: list[int] = []
        try:
            for path, writable in root.shape_sources(stem.shape):
                trees.append(root.detach(path, writable=writable, userns=stem.userns))
        except BaseException:
            for fd in trees:
                os.close(fd)
            raise
        return trees

    def _extras(self, stem: Stem, claim: Claim) -> list[int]:
        if stem.slot is None:
            return []
        trees: list[int] = []
        try:
            for extra in claim.extras:
                with identity.owner_namespace(extra.source, stem.slot) as userns:
                    trees.append(root.detach_extra(extra, userns))
        except BaseException:
            for fd in trees:
                os.close(fd)
            raise
        return trees

    def _make_spill(self, directory: str) -> int:
        path = f"{directory}/spill"
        os.mkdir(path, 0o700)
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _own_spill(self, stem: Stem, directory: str) -> None:
        if stem.slot is not None:
            owner = identity.base(stem.slot) + identity.USER
            os.chown(f"{directory}/spill", owner, owner)

    def _write_plan(self, stem: Stem, order: Order) -> None:
        """Before the child can become a box: after a crash this file leads to it."""
        data = json.dumps({"keeper": order.keeper, "store": order.shape.store, **stem.facts()}).encode()
        fd = os.open(f"{order.directory}/box", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)


def _plain(claim: Claim) -> wire.Message:
    extras = [[extra.source, extra.target, extra.writable, extra.device, extra.inode] for extra in claim.extras]
    return {
        "hostname": claim.hostname, "size": claim.size, "inodes": claim.inodes, "open_files": claim.open_files,
        "processes": claim.processes, "resolv_conf": claim.resolv_conf, "extras": extras,
    }  # fmt: skip
