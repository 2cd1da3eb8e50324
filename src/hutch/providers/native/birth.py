"""From a clone to a guest: what the child does, in this order, until it has no privilege left and serves.

It waits at most twice: for its id maps, and, if it was begun ahead (a stem), for the order that claims it. While it
waits, end of file on its socket means that the spawner is gone, and it ends too. Standard library only.
"""

import json
import os
import resource
import signal
import socket
from typing import Any, NamedTuple, NoReturn

from hutch.guest import main as guest
from hutch.providers.native import cgroup_control, identity, kernel, root, wire
from hutch.providers.native.landlock import Domain
from hutch.providers.native.network.loopback import lo_up
from hutch.providers.native.seccomp import Filter

STANDING_PLACE = "/sys"
"""Where a box's base is mounted until it becomes the root: a directory that every mapped user can reach, which is not
true of our own directories (a state directory may lie below a home of mode 0700)."""


class Setting(NamedTuple):
    """What is the same for every box of one spawner."""

    run: str
    """Where each box's directory is."""
    ranged: bool
    last_capability: int
    filter: Filter
    domain: Domain
    command_line: kernel.CommandLine
    masks: tuple[root.Mask, ...]
    without: frozenset[str]
    """Defences left out. Only the attack suite asks for it, to see each attack succeed without its defence."""


class Claim(NamedTuple):
    """What one order adds to a shape."""

    hostname: str
    size: int
    inodes: int
    open_files: int
    processes: int
    """RLIMIT_NPROC, where no control group counts processes; 0: not set."""
    extras: tuple[root.Extra, ...]

    @staticmethod
    def parse(values: list[Any]) -> "Claim":
        """From JSON; the order is that of the fields."""
        hostname, size, inodes, open_files, processes, extras = values
        return Claim(hostname, size, inodes, open_files, processes, tuple(root.Extra(*extra) for extra in extras))


class Doors(NamedTuple):
    """What a box has of the host: its guest's listening socket, and a directory for output that memory cannot hold."""

    listener: int
    spill: int


class Stopped(Exception):
    """The spawner went away before the box was ready."""


class Child:
    """The child's side. `step` names what it is doing, for the error report."""

    def __init__(self, setting: Setting, shape: root.Shape, sock: socket.socket, doors: Doors) -> None:
        self._setting = setting
        self._shape = shape
        self._sock = sock
        self._doors = doors
        self._root = root.Root(shape, ranged=setting.ranged, masks=setting.masks)
        self._oom = -1
        self.step = "start"

    def live(self, entrances: list[str], ordered: tuple[Claim, int] | None) -> NoReturn:
        """Never returns. `ordered` is the claim and the guest's options, if the order is known already."""
        try:
            options = [ordered[1]] if ordered else []
            kernel.close_but([self._sock.fileno(), self._doors.listener, self._doors.spill, *options])
            self._setting.command_line.show("hutch-guest")
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            trees = self._begin(entrances, ordered[0].extras if ordered else ())
            if ordered is None:
                claim, option, trees = self._await_claim()
            else:
                claim, option = ordered
            self._finish(claim, option, trees)
        except Stopped:
            os._exit(0)
        except BaseException as error:
            self._report(error)
            os._exit(1)
        os._exit(0)

    def _begin(self, entrances: list[str], extras_asked: tuple[root.Extra, ...]) -> list[int]:
        """All that needs no order. Returns the detached trees of the extra mounts, if they are known already."""
        setting, shape = self._setting, self._shape
        self.step = "join the control group"
        for path in entrances:
            cgroup_control.write(path, "0")  # while the host's group files still accept this process's user
        self.step = "wait for the id maps"
        message, trees = self._receive()
        count = len(root.shape_sources(shape))
        trees, extras = trees[:count], trees[count:]
        self.step = "take the box's identity"
        if setting.ranged:
            os.setgroups([])
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
            kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # cleared by setresuid; our own /proc files are needed below
        else:
            trees = [root.detach(source, None) for source in root.shape_sources(shape)]
            extras = [root.detach_extra(extra, None) for extra in extras_asked]
        # Not at the clone: the namespace's root is the group that its first process is in.
        kernel.unshare(kernel.CLONE_NEWCGROUP)
        self.step = "build the root"
        self._root.build(STANDING_PLACE, trees, message.get("resolv_conf", ""))
        # The working directory stays the base, outside the new root, until the order is finished.
        os.chroot("m")
        self._oom = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        for number in range(3):
            os.dup2(null, number)
        os.close(null)
        self.step = "bring the loopback up"
        if "network namespace" not in setting.without:
            lo_up()
        self.step = "drop the bounding set"
        if "capabilities" not in setting.without:
            identity.drop_bounding_set(last=setting.last_capability)
        return extras

    def _await_claim(self) -> tuple[Claim, int, list[int]]:
        self.step = "rehearse"
        rehearse()
        self.step = "wait for an order"
        message, (options, *trees) = self._receive()
        return Claim.parse(message["claim"]), options, trees

    def _finish(self, claim: Claim, options: int, trees: list[int]) -> None:
        """Apply the order, give up every privilege, and serve."""
        setting, spill = self._setting, self._doors.spill
        self.step = "finish the root"
        extras = list(zip(claim.extras, trees, strict=True))
        socket.sethostname(claim.hostname)
        self._root.finish(claim.hostname, claim.size, claim.inodes, extras)
        if "mount flags" in setting.without:
            kernel.mount_setattr(kernel.AT_FDCWD, "m", kernel.AT_RECURSIVE, remove=root.QUIET_ATTRIBUTES)
        base = os.open(".", os.O_PATH | os.O_CLOEXEC)
        os.chdir("/")
        self.step = "set limits"
        _limit(resource.RLIMIT_NOFILE, claim.open_files)
        _limit(resource.RLIMIT_CORE, 0)
        if claim.processes:
            _limit(resource.RLIMIT_NPROC, claim.processes)
        self.step = "give up privileges"
        if "capabilities" not in setting.without:
            identity.become(identity.USER, identity.USER, ranged=setting.ranged)
        if "no_new_privs" not in setting.without:
            kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        if "landlock" not in setting.without:
            self.step = "enter the Landlock domain"
            setting.domain.enter(base, (spill,))
        os.close(base)
        self.step = "load the system call filter"
        if "seccomp" not in setting.without:
            setting.filter.load()
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1 if "dumpable" in setting.without else 0)
        self.step = "serve"
        told = json.loads(wire.unsealed(options))
        given_options = guest.Options(**told, spill_fd=spill, oom_fd=self._oom, is_init=True, on_ready=self._ready)
        guest.serve(socket.socket(fileno=self._doors.listener), given_options)

    def _ready(self) -> None:
        wire.send(self._sock, {"ready": True})
        self._sock.close()

    def _receive(self) -> tuple[wire.Message, list[int]]:
        received = wire.receive(self._sock)
        if received is None:
            raise Stopped
        return received

    def _report(self, error: BaseException) -> None:
        try:
            wire.send(self._sock, wire.told(self.step, error))
        except OSError:
            return  # the spawner is gone, and with it whoever would have wanted to know


def rehearse() -> None:
    """Do once what the order will ask for, and throw it away.

    Every page that a fork writes to for the first time has to be copied; while waiting, that costs nobody anything.
    """
    Claim.parse(json.loads('["",0,0,0,0,[]]'))
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        guest.Guest(listener, guest.Options("", is_init=False))


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    most = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (most, most))
