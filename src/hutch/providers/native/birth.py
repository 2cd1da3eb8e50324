"""From a clone to a guest: what the child does, in this order, until it has no privilege left and serves.

It waits at most twice: for its id maps, and, if it was begun ahead (a stem), for the order that claims it. While it
waits, end of file on its socket means that the spawner is gone, and it ends too. Standard library only.

Here and in `root` names are imported one by one. A child shares its zygote's memory page by page until it writes to
it, and Python writes to whatever it looks at: code that runs once and says `os.mkdir` touches four pages more than
code that says `mkdir`. A box needs 0.7 MB less since that, the lookups at import in `kernel`, and `rehearse`.
"""

from contextlib import suppress
from os import (
    O_CLOEXEC,
    O_PATH,
    O_RDWR,
    O_WRONLY,
    _exit,
    chdir,
    chroot,
    close,
    dup2,
    setgroups,
    setresgid,
    setresuid,
    setsid,
    write,
)
from os import open as open_file
from resource import RLIM_INFINITY, RLIMIT_CORE, RLIMIT_NOFILE, RLIMIT_NPROC, getrlimit, setrlimit
from socket import AF_UNIX, SOCK_STREAM, SocketType, sethostname, socket, socketpair
from typing import Any, NamedTuple, NoReturn

from hutch.guest.loop import READ
from hutch.guest.main import Guest, Options, serve
from hutch.guest.payloads import decode
from hutch.guest.protocol import REQUEST, frame
from hutch.providers.native.building import HARMLESS, Plan, build
from hutch.providers.native.identity import USER, become, drop_bounding_set
from hutch.providers.native.kernel import (
    AT_FDCWD,
    AT_RECURSIVE,
    CLONE_NEWCGROUP,
    PR_GET_DUMPABLE,
    PR_SET_DUMPABLE,
    PR_SET_NO_NEW_PRIVS,
    CommandLine,
    close_but,
    mount,
    mount_setattr,
    prctl,
    unshare,
)
from hutch.providers.native.landlock import Domain
from hutch.providers.native.network.loopback import lo_up
from hutch.providers.native.root import (
    QUIET_ATTRIBUTES,
    Extra,
    Mask,
    detach,
    detach_extra,
    finish,
    name_servers,
    write_file,
)
from hutch.providers.native.seccomp import Filter
from hutch.providers.native.wire import Message, receive, send, told, unsealed

STANDING_PLACE = "/sys"
"""Where a box's base is mounted until it becomes the root: a directory that every mapped user can reach, which is not
true of our own directories (a state directory may lie below a home of mode 0700)."""


_PATIENCE = 1.0
"""Seconds after which a rehearsal is broken off; one takes a millisecond."""


class Setting(NamedTuple):
    """What is the same for every box of one spawner."""

    run: str
    """Where each box's directory is."""
    ranged: bool
    last_capability: int
    filter: Filter
    domain: Domain
    command_line: CommandLine
    masks: tuple[Mask, ...]
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
    extras: tuple[Extra, ...]

    @staticmethod
    def parse(values: list[Any]) -> "Claim":
        """From JSON; the order is that of the fields."""
        hostname, size, inodes, open_files, processes, extras = values
        return Claim(hostname, size, inodes, open_files, processes, tuple(Extra(*extra) for extra in extras))


class Given(NamedTuple):
    """What comes with an order as descriptors: what the guest is told, and the keeper, connected already."""

    options: int
    keeper: int


class Doors(NamedTuple):
    """What a box has of the host: its guest's listening socket, and a directory for output that memory cannot hold."""

    listener: int
    spill: int


class Stopped(Exception):
    """The spawner went away before the box was ready."""


class Child:
    """The child's side. `step` names what it is doing, for the error report."""

    def __init__(self, setting: Setting, plan: Plan, sock: SocketType, doors: Doors) -> None:
        self._setting = setting
        self._plan = plan
        self._sock = sock
        self._doors = doors
        self._oom = -1
        self.step = "start"

    def live(self, entrances: tuple[str, ...], ordered: tuple[Claim, Given] | None) -> NoReturn:
        """Never returns. `ordered` is the claim and what came with it, if the order is known already."""
        try:
            close_but([self._sock.fileno(), *self._doors, *(ordered[1] if ordered else ())])
            self._setting.command_line.show("hutch-guest")
            setsid()
            trees = self._begin(entrances, ordered[0].extras if ordered else ())
            if ordered is None:
                claim, given, trees = self._await_claim()
            else:
                claim, given = ordered
            self._finish(claim, given, trees)
        except Stopped:
            _exit(0)
        except BaseException as error:
            self._report(error)
            _exit(1)
        _exit(0)

    def _begin(self, entrances: tuple[str, ...], extras_asked: tuple[Extra, ...]) -> list[int]:
        """All that needs no order. Returns the detached trees of the extra mounts, if they are known already."""
        setting, plan = self._setting, self._plan
        self.step = "join the control group"
        for path in entrances:
            # While the host's group files still accept this process's user.
            group = open_file(path, O_WRONLY | O_CLOEXEC)
            write(group, b"0")
            close(group)
        self.step = "wait for the id maps"
        message, trees = self._receive()
        count = len(plan.sources)
        trees, extras = trees[:count], trees[count:]
        self.step = "take the box's identity"
        if setting.ranged:
            setgroups([])
            setresgid(0, 0, 0)
            setresuid(0, 0, 0)
            prctl(PR_SET_DUMPABLE, 1)  # cleared by setresuid; our own /proc files are needed below
        else:
            trees = [detach(source, None) for source in plan.sources]
            extras = [detach_extra(extra, None) for extra in extras_asked]
        # Not at the clone: the namespace's root is the group that its first process is in.
        unshare(CLONE_NEWCGROUP)
        self.step = "build the root"
        build(plan.steps, trees)
        if "resolv_conf" in message:
            name_servers(message["resolv_conf"])
        # The working directory stays the base, outside the new root, until the order is finished.
        chroot("m")
        self._oom = open_file("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC)
        null = open_file("/dev/null", O_RDWR | O_CLOEXEC)
        for number in range(3):
            dup2(null, number)
        close(null)
        self.step = "bring the loopback up"
        if "network namespace" not in setting.without:
            lo_up()
        self.step = "drop the bounding set"
        if "capabilities" not in setting.without:
            drop_bounding_set(last=setting.last_capability)
        return extras

    def _await_claim(self) -> tuple[Claim, Given, list[int]]:
        self.step = "wait for an order"
        message, (options, keeper, *trees) = self._receive()
        return Claim.parse(message["claim"]), Given(options, keeper), trees

    def _finish(self, claim: Claim, given: Given, trees: list[int]) -> None:
        """Apply the order, give up every privilege, and serve."""
        setting, spill = self._setting, self._doors.spill
        self.step = "finish the root"
        extras = list(zip(claim.extras, trees, strict=True))
        sethostname(claim.hostname)
        kept, read_only = self._plan.kept, self._plan.read_only
        finish(claim.hostname, claim.size, claim.inodes, extras, kept=kept, read_only=read_only)
        if "mount flags" in setting.without:
            mount_setattr(AT_FDCWD, "m", AT_RECURSIVE, remove=QUIET_ATTRIBUTES)
        base = open_file(".", O_PATH | O_CLOEXEC)
        chdir("/")
        self.step = "set limits"
        _limit(RLIMIT_NOFILE, claim.open_files)
        _limit(RLIMIT_CORE, 0)
        if claim.processes:
            _limit(RLIMIT_NPROC, claim.processes)
        self.step = "give up privileges"
        if "capabilities" not in setting.without:
            become(USER, USER, ranged=setting.ranged)
        if "no_new_privs" not in setting.without:
            prctl(PR_SET_NO_NEW_PRIVS, 1)
        if "landlock" not in setting.without:
            self.step = "enter the Landlock domain"
            setting.domain.enter(base, (spill,))
        close(base)
        self.step = "load the system call filter"
        if "seccomp" not in setting.without:
            setting.filter.load()
        prctl(PR_SET_DUMPABLE, 1 if "dumpable" in setting.without else 0)
        self.step = "serve"
        told = decode(unsealed(given.options))
        options = Options(**told, spill_fd=spill, oom_fd=self._oom, is_init=True, on_ready=self._ready)
        serve(self._doors.listener, options, first=given.keeper)

    def _ready(self) -> None:
        send(self._sock, {"ready": True})
        self._sock.close()

    def _receive(self) -> tuple[Message, list[int]]:
        received = receive(self._sock)
        if received is None:
            raise Stopped
        return received

    def _report(self, error: BaseException) -> None:
        try:
            send(self._sock, told(self.step, error))
        except OSError:
            return  # the spawner is gone, and with it whoever would have wanted to know


def rehearse(setting: Setting) -> bool:
    """Do once what an order and the first requests will ask for, in the process that children are cloned from.

    Code that has run a few times no longer writes to the objects it finds its names by, and so not to their pages.
    False: it did not come to its end.
    """
    ours, theirs = socketpair()
    with socket(AF_UNIX, SOCK_STREAM) as listener, ours, theirs:
        child = Child(setting, Plan((), HARMLESS, False, False), theirs, Doors(-1, -1))
        build(child._plan.steps, [])
        write_file("/dev/null", "")
        _limit(RLIMIT_CORE, 0)
        drop_bounding_set(last=-1)
        prctl(PR_GET_DUMPABLE)
        with suppress(OSError):
            mount(None, "/dev/null/none")
        send(ours, {"claim": Claim("", 0, 0, 0, 0, ())}, [listener.fileno(), listener.fileno()])
        _, given, _ = child._await_claim()
        for fd in given:
            close(fd)
        score = open_file("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC)
        options = Options("", workdir="/", env={"PATH": "/usr/bin:/bin"}, oom_fd=score, orphan_grace=1.0)
        guest = Guest(listener.fileno(), options)
        guest.welcome(theirs.detach())
        answers: list[bytes] = []

        def heard(_events: int) -> None:
            answers.append(ours.recv(1 << 16))
            if b'"exit_code":' in answers[-1] or b'"errno":' in answers[-1]:
                guest.loop.stop()

        guest.loop.watch(ours.fileno(), READ, heard)
        ours.send(frame(REQUEST, 1, b'{"op":"ping"}') + frame(REQUEST, 2, b'{"op":"run","command":["true"]}'))
        guest.loop.after(_PATIENCE, guest.loop.stop)
        guest.run()
        return any(b'"exit_code":' in answer for answer in answers)


def _limit(kind: int, value: int) -> None:
    hard = getrlimit(kind)[1]
    most = value if hard == RLIM_INFINITY else min(value, hard)
    setrlimit(kind, (most, most))
