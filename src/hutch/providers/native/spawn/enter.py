"""Entering a box that lives: a short-lived fork of the spawner goes in and leaves a *deputy* there, or a mount.

A deputy is a second guest that runs as the box's root, or as another user of the box. Only root can do that: the box
must have more than one id, and the kernel lets nobody else into the namespaces of a guest, which is not dumpable. The
process to follow is known by pid, start time and boot, never by what the box says. Standard library only.
"""

import errno
import json
import os
import signal
import socket
from contextlib import suppress
from typing import NamedTuple, NoReturn

from hutch.guest import main as guest
from hutch.linux import identity, kernel, landlock, processes
from hutch.linux.cgroups import Group
from hutch.providers.native.rootfs import root
from hutch.providers.native.spawn import accounts, wire
from hutch.providers.native.spawn.child_steps import Setting
from hutch.providers.native.spawn.netlink_permits import Permits

_NAMESPACES = (
    kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWNET | kernel.CLONE_NEWCGROUP
)  # fmt: skip


class Entry(NamedTuple):
    """Where to go, and who to be there."""

    process: processes.Identity
    directory: str
    door: str
    """Name of the deputy's socket in the box's directory."""
    uid: int
    options: int


class MountSurgeon:
    """The fork's side, when a directory of the host is to be shown in the box from now on, read-only."""

    def __init__(self, process: processes.Identity, extra: root.Extra, sock: socket.socket) -> None:
        self._process = process
        self._extra = extra
        self._sock = sock
        self.step = "find the box"

    def show(self) -> NoReturn:
        """Never returns."""
        try:
            pidfd = self._process.open()
            if pidfd is None:
                raise ProcessLookupError(3, "the box no longer runs")
            self.step = "open the directory"
            tree = root.detach_extra(self._extra, None)
            kernel.close_but([self._sock.fileno(), pidfd, tree])
            self.step = "enter the namespaces"
            kernel.setns(pidfd, kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
            os.setgroups([])
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
            os.chroot("m")
            os.chdir("/")
            self.step = "mount"
            self._mount(tree)
            wire.send(self._sock, {"ready": True})
        except BaseException as error:
            _report(self._sock, self.step, error)
            os._exit(1)
        os._exit(0)

    def _mount(self, tree: int) -> None:
        """On an empty directory, made now if need be: what the box keeps under that name is never covered."""
        parent, _, name = self._extra.target.rpartition("/")
        above = kernel.openat2(kernel.AT_FDCWD, parent, os.O_RDONLY | os.O_DIRECTORY, kernel.RESOLVE_NO_SYMLINKS)
        with suppress(FileExistsError):  # whether it will do is seen next
            os.mkdir(name, 0o755, dir_fd=above)
        place = kernel.openat2(above, name, os.O_RDONLY | os.O_DIRECTORY, kernel.RESOLVE_NO_SYMLINKS)
        if os.listdir(place):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), self._extra.target)
        kernel.move_mount(tree, place, "")
        # Threat: the box renames the directory in between, and puts one of its own in its place. Once it is a mount
        # point, rename(2) refuses that (EBUSY).
        seen = os.stat(name, dir_fd=above, follow_symlinks=False)
        if (seen.st_dev, seen.st_ino) != (self._extra.device, self._extra.inode):
            raise OSError(errno.ESTALE, "the directory was moved meanwhile", self._extra.target)


class Surgeon:
    """The fork's side, when there is to be a deputy."""

    def __init__(self, setting: Setting, entry: Entry, sock: socket.socket) -> None:
        self._setting = setting
        self._entry = entry
        self._sock = sock
        self.step = "find the box"

    def enter(self, group: Group | None) -> NoReturn:
        """Never returns: this process ends once the deputy, its child, goes its own way."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            entry = self._entry
            pidfd = entry.process.open()
            if pidfd is None:
                raise ProcessLookupError(3, "the box no longer runs", entry.directory)
            self.step = "open the door"
            listener, spill = self._open_door()
            kernel.close_but([self._sock.fileno(), pidfd, listener, spill, entry.options])
            kernel.make(accounts.limiting_like(entry.process.pid))
            self.step = "join the control group"
            if group is not None:
                group.place(os.getpid())
            self.step = "enter the namespaces"
            kernel.setns(pidfd, _NAMESPACES)
            os.close(pidfd)
            os.setgroups([])
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
            base = os.open("/", os.O_PATH | os.O_CLOEXEC)
            os.chroot("m")
            os.chdir("/")
            self.step = "start the deputy"
            if os.fork() == 0:  # only children are born into the pid namespace
                self._serve(listener, spill, base)
        except BaseException as error:
            _report(self._sock, self.step, error)
            os._exit(1)
        os._exit(0)

    def _open_door(self) -> tuple[int, int]:
        """On the host, before going in: the deputy's socket, and the box's directory for spilled output."""
        directory, door = self._entry.directory, self._entry.door
        self._check_user()
        path = f"{directory}/{door}"
        if os.path.lexists(path):
            os.unlink(path)  # of a deputy that has ended
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        listener.listen(64)
        return listener.detach(), root.detach_spill(f"{directory}/{root.SPILL}")

    def _check_user(self) -> None:
        """By the kernel's own map of the box."""
        with open(f"/proc/{self._entry.process.pid}/uid_map") as file:
            inside, _, length = map(int, file.readline().split())
        if not inside <= self._entry.uid < inside + length:
            raise ValueError(f"user {self._entry.uid} does not exist in the box")

    def _serve(self, listener: int, spill: int, base: int) -> None:
        try:
            setting, uid = self._setting, self._entry.uid
            setting.command_line.show("hutch-deputy")
            os.setsid()
            null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
            for number in range(3):
                os.dup2(null, number)
            os.close(null)
            self.step = "give up privileges"
            kept = identity.ROOT_KEEPS if uid == 0 else frozenset()
            kernel.make(identity.dropping_bounding_set(setting.last_capability, kept))
            kernel.make(identity.becoming(uid, ranged=True, kept=kept))
            kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
            if "landlock" not in setting.without:
                # Unscoped: the box's root may signal the users' processes, which live in another domain.
                landlock.Domain(landlock.abi(), scopes=0).enter((base, spill))
            os.close(base)
            asking = setting.filter.load() if "seccomp" not in setting.without else -1
            kernel.prctl(kernel.PR_SET_DUMPABLE, 1 if "dumpable" in setting.without else 0)
            self.step = "serve"
            told = json.loads(wire.unsealed(self._entry.options))
            options = guest.Options(**told, on_ready=self._ready)
            context = guest.GuestContext(spill_fd=spill, is_secondary=True, name=self._entry.door)
            guest.serve(listener, options, context, on_created=lambda made: _permit(made, asking))
        except BaseException as error:
            _report(self._sock, self.step, error)
            os._exit(1)

    def _ready(self) -> None:
        wire.send(self._sock, {"ready": True})
        self._sock.close()


def _permit(made: guest.Guest, asking: int) -> None:
    if asking >= 0:
        Permits(made.loop, asking)


def _report(sock: socket.socket, step: str, error: BaseException) -> None:
    try:
        wire.send(sock, wire.told(step, error))
    except OSError:
        return  # the spawner is gone, and with it whoever would have wanted to know
