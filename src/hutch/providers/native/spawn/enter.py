"""Entering the namespaces of a running box: a short-lived fork of the spawner starts a root guest there, or mounts.

A root guest is a second guest that runs as the box's root, or as another user of the box. Only root can start one: the
box must have more than one id, and the kernel lets nobody else into the namespaces of a guest, which is not dumpable.
The box's process is known by pid, start time and boot, never by what the box says. Standard library only.
"""

import errno
import json
import os
import signal
import socket
import stat
from contextlib import suppress
from typing import NamedTuple, NoReturn

from hutch.guest import main as guest
from hutch.linux import identity, kernel, landlock, processes
from hutch.linux.cgroups import Group
from hutch.providers.native.rootfs import root
from hutch.providers.native.spawn import kernel_limits, wire
from hutch.providers.native.spawn.child_steps import SpawnerSettings
from hutch.providers.native.spawn.netlink_permits import NetlinkPermits

_NAMESPACES = (
    kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWNET | kernel.CLONE_NEWCGROUP
)  # fmt: skip


class EntryRequest(NamedTuple):
    """The box to enter, and the user to become there."""

    process: processes.Identity
    directory: str
    socket_name: str
    """The name of the root guest's socket in the box's directory."""
    uid: int
    options: int


class MountEntry:
    """Runs in the fork, and mounts a directory of the host in the box, read-only."""

    def __init__(self, process: processes.Identity, host_mount: root.HostMount, sock: socket.socket) -> None:
        self._process = process
        self._host_mount = host_mount
        self._sock = sock
        self.step = "find the box"

    def show(self) -> NoReturn:
        """Mount it, report, and end; never returns."""
        try:
            pidfd = self._process.open()
            if pidfd is None:
                raise ProcessLookupError(3, "the box no longer runs")
            self.step = "open the directory"
            tree = root.detach_host_mount(self._host_mount, None)
            kernel.close_all_but([self._sock.fileno(), pidfd, tree])
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
        """Mount a directory on an empty one, made if need be: a file that the box keeps there is never covered.

        A file is mounted on the file of the system that it stands for.
        """
        parent, _, name = self._host_mount.target.rpartition("/")
        above = kernel.openat2(kernel.AT_FDCWD, parent, os.O_RDONLY | os.O_DIRECTORY, kernel.RESOLVE_NO_SYMLINKS)
        if stat.S_ISREG(os.fstat(tree).st_mode):
            place = kernel.openat2(above, name, os.O_PATH, kernel.RESOLVE_NO_SYMLINKS)
        else:
            with suppress(FileExistsError):  # the next lines check what is there
                os.mkdir(name, 0o755, dir_fd=above)
            place = kernel.openat2(above, name, os.O_RDONLY | os.O_DIRECTORY, kernel.RESOLVE_NO_SYMLINKS)
            if os.listdir(place):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), self._host_mount.target)
        kernel.move_mount(tree, place, "")
        # Threat: the box renames the directory meanwhile, and puts another in its place. Once it is a mount point,
        # rename(2) refuses that (EBUSY).
        seen = os.stat(name, dir_fd=above, follow_symlinks=False)
        if (seen.st_dev, seen.st_ino) != (self._host_mount.device, self._host_mount.inode):
            raise OSError(errno.ESTALE, "the directory was moved meanwhile", self._host_mount.target)


class NamespaceEntry:
    """Runs in the fork, and starts a root guest in the box."""

    def __init__(self, settings: SpawnerSettings, entry: EntryRequest, sock: socket.socket) -> None:
        self._settings = settings
        self._entry = entry
        self._sock = sock
        self.step = "find the box"

    def enter(self, group: Group | None) -> NoReturn:
        """Start the root guest as a child of this process, which then ends; never returns."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            entry = self._entry
            pidfd = entry.process.open()
            if pidfd is None:
                raise ProcessLookupError(3, "the box no longer runs", entry.directory)
            self.step = "open the socket"
            listener, spill = self._open_socket()
            kernel.close_all_but([self._sock.fileno(), pidfd, listener, spill, entry.options])
            kernel.run_calls(kernel_limits.rlimit_calls_of(entry.process.pid))
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
            self.step = "start the guest"
            if os.fork() == 0:  # only children are created in the pid namespace
                self._serve(listener, spill, base)
        except BaseException as error:
            _report(self._sock, self.step, error)
            os._exit(1)
        os._exit(0)

    def _open_socket(self) -> tuple[int, int]:
        """Open the root guest's socket and the box's directory for spilled output, while still on the host."""
        directory, socket_name = self._entry.directory, self._entry.socket_name
        self._check_user()
        path = f"{directory}/{socket_name}"
        if os.path.lexists(path):
            os.unlink(path)  # left by a root guest that has ended
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        listener.listen(64)
        return listener.detach(), root.detach_spill(f"{directory}/{root.SPILL}")

    def _check_user(self) -> None:
        """Check the user against the kernel's own id map of the box."""
        with open(f"/proc/{self._entry.process.pid}/uid_map") as file:
            inside, _, length = map(int, file.readline().split())
        if not inside <= self._entry.uid < inside + length:
            raise ValueError(f"user {self._entry.uid} does not exist in the box")

    def _serve(self, listener: int, spill: int, base: int) -> None:
        try:
            settings, uid = self._settings, self._entry.uid
            settings.command_line.show("hutch-deputy")
            os.setsid()
            null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
            for number in range(3):
                os.dup2(null, number)
            os.close(null)
            self.step = "give up privileges"
            kept = identity.ROOT_KEEPS if uid == 0 else frozenset()
            kernel.run_calls(identity.drop_bounding_set_calls(settings.last_capability, kept))
            kernel.run_calls(identity.become_user_calls(uid, has_id_ranges=True, kept=kept))
            kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
            if "landlock" not in settings.without:
                # Without scopes, because the box's root may signal the users' processes, which are in another domain.
                landlock.Domain(landlock.abi(), scopes=0).enter((base, spill))
            os.close(base)
            asking = settings.filter.load() if "seccomp" not in settings.without else -1
            kernel.prctl(kernel.PR_SET_DUMPABLE, 1 if "dumpable" in settings.without else 0)
            self.step = "serve"
            values = json.loads(wire.read_memfd(self._entry.options))
            options = guest.Options(**values, on_ready=self._ready)
            context = guest.GuestContext(spill_fd=spill, is_secondary=True, name=self._entry.socket_name)
            guest.serve(listener, options, context, on_created=lambda made: _permit(made, asking))
        except BaseException as error:
            _report(self._sock, self.step, error)
            os._exit(1)

    def _ready(self) -> None:
        wire.send(self._sock, {"ready": True})
        self._sock.close()


def _permit(made: guest.Guest, asking: int) -> None:
    if asking >= 0:
        NetlinkPermits(made.loop, asking)


def _report(sock: socket.socket, step: str, error: BaseException) -> None:
    try:
        wire.send(sock, wire.error_message(step, error))
    except OSError:
        return  # the spawner is gone, so nobody reads the report
