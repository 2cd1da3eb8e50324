"""Entering a box that lives: a short-lived fork of the spawner goes in and leaves a *deputy* there.

A deputy is a second guest that runs as the box's root, or as another user of the box. Only root can do that: the box
must have more than one id. The process to follow is known by pid, start time and boot, never by what the box says.
Standard library only.
"""

import json
import os
import signal
import socket
from typing import NamedTuple, NoReturn

from hutch.guest import main as guest
from hutch.providers.native import identity, kernel, landlock, processes, wire
from hutch.providers.native.cgroups import Group
from hutch.providers.native.stages import Setting

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


class Surgeon:
    """The fork's side."""

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
            self._report(error)
            os._exit(1)
        os._exit(0)

    def _open_door(self) -> tuple[int, int]:
        """On the host, before going in: the deputy's socket, and a directory of its own for spilled output."""
        directory, door = self._entry.directory, self._entry.door
        spill = f"{directory}/spill-{door}"
        os.makedirs(spill, 0o700, exist_ok=True)
        owner = self._host_id()
        os.chown(spill, owner, owner)
        path = f"{directory}/{door}"
        if os.path.lexists(path):
            os.unlink(path)  # of a deputy that has ended
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        listener.listen(64)
        return listener.detach(), os.open(spill, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _host_id(self) -> int:
        """The user as the host knows it, from the kernel's own map of the box."""
        with open(f"/proc/{self._entry.process.pid}/uid_map") as file:
            inside, outside, length = map(int, file.readline().split())
        if not inside <= self._entry.uid < inside + length:
            raise ValueError(f"user {self._entry.uid} does not exist in the box")
        return outside + self._entry.uid - inside

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
            if "seccomp" not in setting.without:
                setting.filter.load()
            kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
            self.step = "serve"
            told = json.loads(wire.unsealed(self._entry.options))
            options = guest.Options(**told, on_ready=self._ready)
            guest.serve(listener, options, guest.Means(spill_fd=spill, is_deputy=True))
        except BaseException as error:
            self._report(error)
            os._exit(1)

    def _ready(self) -> None:
        wire.send(self._sock, {"ready": True})
        self._sock.close()

    def _report(self, error: BaseException) -> None:
        try:
            wire.send(self._sock, wire.told(self.step, error))
        except OSError:
            return  # the spawner is gone, and with it whoever would have wanted to know
