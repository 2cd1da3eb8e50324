"""The guest: `serve` turns a process into one. It listens, runs jobs, serves files, and ends a box nobody keeps."""

import ctypes
import gc
import os
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple, NoReturn

from hutch.guest import job_operations
from hutch.guest.channels import Channel, Connection, Fields, Operation
from hutch.guest.files import driver
from hutch.guest.files.paths import AT_FDCWD, open_at
from hutch.guest.jobs import Jobs
from hutch.guest.loop import READ, Loop, Timer
from hutch.guest.output import Spill
from hutch.guest.processes import Strays, newest, processes
from hutch.guest.protocol import VERSION

RETRY = 0.2
_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE)
_CLOSE_RANGE = 436  # the same number on every architecture
_CLOSE_RANGE_CLOEXEC = 4  # since Linux 5.11

_syscall = ctypes.CDLL(None).syscall


class Options:
    """What the one who makes the box tells its guest."""

    __slots__ = ("admits", "box_id", "env", "on_ready", "orphan_grace", "shell", "ttl_deadline", "workdir")

    def __init__(
        self,
        box_id: str,
        *,
        workdir: str = "/workspace",
        env: Mapping[str, str] | None = None,
        shell: str = "",
        orphan_grace: float = 0.0,
        ttl_deadline: float = 0.0,
        on_ready: Callable[[], None] | None = None,
        admits: Callable[[socket.socket], bool] | None = None,
    ) -> None:
        self.box_id = box_id
        self.workdir = workdir
        self.env = dict(env or {})
        """The whole environment of every command; what a command asks for is added to it."""
        self.shell = shell
        """For commands that are a text; empty: /bin/bash, else /bin/sh."""
        self.orphan_grace = orphan_grace
        """Seconds without any connection until the guest ends the box; 0: never."""
        self.ttl_deadline = ttl_deadline
        """Monotonic second at which the guest ends the box; 0: never."""
        self.on_ready = on_ready
        self.admits = admits
        """Who may connect, where the box's own commands can reach the listener; None: nobody else can."""


class Means(NamedTuple):
    """What a guest has before it is told anything."""

    spill_fd: int | None = None
    """A directory outside the user's view for output that does not fit in memory; None: head and tail only.

    All guests of a box share it. From the descriptor no other directory can be reached.
    """
    oom_fd: int | None = None
    """The guest's own oom_score_adj, opened for reading and writing while that was allowed."""
    is_init: bool = False
    """Whether it is PID 1 of the box and may kill everything in it."""
    is_deputy: bool = False
    """Whether it is a second guest of a box, for another user than PID 1."""
    name: str = "guest"
    """What tells it from the other guests of its box."""


class Guest:
    """The listener, its connections, and the clocks that end the box without a keeper.

    Made ahead of its box's order, perhaps; it begins when it is told its options.
    """

    DESCRIPTORS = 1 + Jobs.DESCRIPTORS
    """How many it opens when it is made."""

    def __init__(self, listener: int, means: Means) -> None:
        """`listener`: the descriptor of a listening stream socket."""
        self.options = Options("")
        self.loop = Loop()
        self.means = means
        self._listener = listener
        self._boot = os.urandom(6).hex()
        spill = Spill(means.spill_fd, owner=means.name)
        if means.is_deputy:  # PID 1 is the first of its box
            spill.clear()
        self.jobs = Jobs(
            self.loop,
            spill,
            prefix=f"{self._boot[:6]}-",
            oom_fd=means.oom_fd,
            strays=Strays(is_init=means.is_init, is_deputy=means.is_deputy),
            hidden=[fd for fd in (means.spill_fd, means.oom_fd, listener) if fd is not None],
        )
        self._connections: set[Connection] = set()
        self._orphan_timer: Timer | None = None
        self._works_alone = False
        """A keeper has left the box on purpose: its jobs keep it from its dead-man's clock."""
        self._was_at_work = False
        self._ttl_timer: Timer | None = None
        os.set_blocking(listener, False)
        self.loop.watch(listener, READ, self._accept)

    def begin(self, options: Options) -> None:
        """From now on its clocks run."""
        self.options = options
        self.jobs.begin(options.workdir, options.env, options.shell)
        self._wind_orphan_clock()
        if options.ttl_deadline:
            self._ttl_timer = self.loop.at(options.ttl_deadline, self._end)

    def run(self) -> None:
        self.loop.run()

    def _accept(self, _events: int) -> None:
        fd = self._listener
        # Not before: most boxes never see a second keeper, and a socket object touches a dozen pages of memory.
        listener = socket.socket(fileno=fd)
        try:
            sock, _ = listener.accept()
        except OSError:
            # Gone again, or no descriptor is free; then epoll would call at once, and again.
            self.loop.unwatch(fd)
            self.loop.after(RETRY, lambda: self.loop.watch(fd, READ, self._accept))
            return
        finally:
            listener.detach()
        if self.options.admits is not None and not self.options.admits(sock):
            sock.close()
            return
        self.welcome(sock.detach())

    def welcome(self, fd: int) -> None:
        """Serve whoever is at the other end of this stream socket."""
        connection = Connection(self, fd, _OPERATIONS)
        self._connections.add(connection)
        if self._orphan_timer is not None:
            self._orphan_timer.cancel()
        connection.greet(
            {
                "version": VERSION,
                "box_id": self.options.box_id,
                "pid": os.getpid(),
                "boot": self._boot,
                "jobs": len(self.jobs.by_id),
            }
        )

    def closed(self, connection: Connection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        self._wind_orphan_clock()

    def _wind_orphan_clock(self) -> None:
        """A dead-man's clock: it runs while nobody is connected."""
        if self._orphan_timer is not None:
            self._orphan_timer.cancel()
        if not self._connections and self.options.orphan_grace > 0:
            self._orphan_timer = self.loop.after(self.options.orphan_grace, self._orphaned)

    def _orphaned(self) -> None:
        """A box that was left on purpose goes on while a job of its own runs, and waits once more when that has ended;
        any other ends here."""
        at_work = self._works_alone and self.jobs.running > 0
        if at_work or self._was_at_work:
            self._was_at_work = at_work
            self._wind_orphan_clock()
        else:
            self._end()

    def clock(self, channel: Channel, fields: Fields) -> None:
        """The keeper pushes its clocks, so that they hold also when it is gone; ttl in seconds from now, 0: never."""
        grace, ttl = fields.get("orphan_grace"), fields.get("ttl")
        if grace is not None:
            self.options.orphan_grace = float(grace)
        self._works_alone = bool(fields.get("works_alone", self._works_alone))
        if ttl is not None:
            if self._ttl_timer is not None:
                self._ttl_timer.cancel()
            self._ttl_timer = self.loop.after(float(ttl), self._end) if ttl > 0 else None
        channel.reply()

    def space(self, channel: Channel, fields: Fields) -> None:
        """Free blocks and inodes where commands write; a filesystem without an inode count has `files` 0.

        On request also how many processes and threads the box has beside its guest, and how many were started after
        the one that `since` names, if all that /proc shows is the box.
        """
        found = {}
        for path in ("/", self.options.workdir, "/tmp"):
            try:
                place = open_at(AT_FDCWD, path, os.O_PATH)  # a link on the way may be a magic one, to the host
            except OSError:
                continue
            try:
                stat = os.fstatvfs(place)
            finally:
                os.close(place)
            found[path] = {
                "size": stat.f_blocks * stat.f_frsize,
                "free": stat.f_bavail * stat.f_frsize,
                "files": stat.f_files,
                "files_free": stat.f_favail,
                "read_only": bool(stat.f_flag & os.ST_RDONLY),
            }
        countable = fields.get("tasks") and self.means.is_init
        tasks = sum(process.threads for process in processes()) if countable else None
        since = fields.get("since")
        started = max(0, newest() - since) if countable and isinstance(since, int) and since > 0 else None
        channel.reply({"space": found, "tasks": tasks, "started": started})

    def usage(self, channel: Channel, _fields: Fields) -> None:
        """CPU seconds of all commands so far: those that have ended, and those that run if all /proc shows is ours."""
        ended = os.times()
        live = processes() if self.means.is_init else []
        tick = os.sysconf("SC_CLK_TCK")
        user = ended.children_user + sum(process.user_ticks for process in live) / tick
        system = ended.children_system + sum(process.system_ticks for process in live) / tick
        channel.reply({"cpu_user_sec": user, "cpu_system_sec": system})

    def _end(self) -> None:
        """The end of PID 1 is the end of every process in its pid namespace."""
        self.jobs.kill_all(self.means.is_init)
        os._exit(0)


def _ping(_guest: Guest, channel: Channel, _fields: Fields) -> None:
    channel.reply()


# One table for all: a guest is made out of a process whose memory it shares with every other box.
_OPERATIONS: dict[str, Operation] = {
    "ping": _ping,
    "clock": Guest.clock,
    "space": Guest.space,
    "usage": Guest.usage,
    **job_operations.OPERATIONS,
    **driver.SERVED,
}


def ignore_signals() -> None:
    """A handler of Python's (SIGINT has one) would let the user's processes interrupt PID 1.

    Signals that are ignored stay so in a fork: one from which many guests are made calls this once for all of them.
    """
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)


def serve(
    listener: socket.socket | int,
    options: Options,
    means: Means,
    *,
    first: socket.socket | int | None = None,
    operations: Mapping[str, Operation] | None = None,
    on_made: Callable[[Guest], None] | None = None,
) -> NoReturn:
    """Never returns. The caller has one thread and no privilege left, and imported this before it changed its root.

    `first` is a keeper that is connected already; `operations` are what this kind of guest can do besides; `on_made`
    may give it more to watch before it begins.
    """
    _OPERATIONS.update(operations or {})
    ignore_signals()
    for fd in range(3):
        _ensure_open(fd)
    _keep_descriptors()
    guest = Guest(_descriptor(listener), means)
    if on_made is not None:
        on_made(guest)
    guest.begin(options)
    gc.freeze()
    if options.on_ready is not None:
        options.on_ready()
    if first is not None:
        guest.welcome(_descriptor(first))
    while True:
        guest.run()


def _descriptor(sock: socket.socket | int) -> int:
    return sock if isinstance(sock, int) else sock.detach()


def _ensure_open(fd: int) -> None:
    """A pipe must never get the number of a standard stream: it would be in its own child's way."""
    try:
        os.fstat(fd)
    except OSError:
        os.open("/dev/null", os.O_RDWR)


def _keep_descriptors() -> None:
    """No command may inherit one of ours, however the guest itself came by it: posix_spawn closes nothing."""
    if _syscall(_CLOSE_RANGE, 3, -1, _CLOSE_RANGE_CLOEXEC) == 0:
        return
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        numbers = list(range(3, 256))
    for fd in numbers:
        if fd > 2:
            with suppress(OSError):
                os.set_inheritable(fd, False)
