"""The guest's main program: `serve` listens for keepers, runs jobs, serves files, and ends a box that has no keeper."""

import ctypes
import gc
import os
import select
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple, NoReturn

from hutch.guest import job_operations, ports
from hutch.guest.channels import Channel, Connection, Fields, Operation
from hutch.guest.files import driver
from hutch.guest.files.paths import AT_FDCWD, open_at
from hutch.guest.jobs import Jobs
from hutch.guest.loop import READ, Loop, Timer
from hutch.guest.operations import Failure
from hutch.guest.output import Spill
from hutch.guest.processes import Strays, newest_pid, processes
from hutch.guest.protocol import VERSION

ACCEPT_RETRY_SECONDS = 0.2
HOLD_SECONDS = 120
"""How long a guest stands still at most, if the process that switches the box's files hangs."""
MAX_BUSY_SHOWN = 20
_HARMLESS = ("files.watch", "read", "follow", "wait", "hold", "ports", "watch_ports", "connect")
"""Operations that hold no file of the box open, or may be ended when its files are switched."""
_IGNORED_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE)
_CLOSE_RANGE = 436  # close_range(2) has the same number on every architecture
_CLOSE_RANGE_CLOEXEC = 4  # since Linux 5.11

_syscall = ctypes.CDLL(None).syscall


class Options:
    """The options that the creator of a box passes to its guest."""

    __slots__ = ("box_id", "env", "may_connect", "on_ready", "orphan_grace", "shell", "ttl_deadline", "workdir")

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
        may_connect: Callable[[socket.socket], bool] | None = None,
    ) -> None:
        self.box_id = box_id
        self.workdir = workdir
        self.env = dict(env or {})
        """The base environment of every command; a command's own variables are added to it."""
        self.shell = shell
        """The shell for commands given as text; empty means /bin/bash if it exists, else /bin/sh."""
        self.orphan_grace = orphan_grace
        """Seconds without any connection after which the guest ends the box; 0 means never."""
        self.ttl_deadline = ttl_deadline
        """Monotonic time at which the guest ends the box; 0 means never."""
        self.on_ready = on_ready
        self.may_connect = may_connect
        """Decides who may connect where the box's own commands can reach the listener; None if they cannot reach it."""


class GuestContext(NamedTuple):
    """What a guest process has from its start, before it receives its options."""

    spill_fd: int | None = None
    """A directory outside the user's view for output that does not fit in memory; without one, only head and tail are
    kept.

    All guests of a box share it. No other directory can be reached from this descriptor.
    """
    oom_fd: int | None = None
    """The guest's own oom_score_adj, opened for reading and writing while that was still permitted."""
    is_init: bool = False
    """Whether this guest is PID 1 of the box and may kill everything in it."""
    is_secondary: bool = False
    """Whether this is an additional guest of the box, which runs commands for another user than PID 1 does."""
    name: str = "guest"
    """A name that differs from those of the box's other guests."""


class Guest:
    """The listener, its connections, and the timers that end the box when it has no keeper.

    A guest may be created before its box is ordered; `begin` then gives it its options.
    """

    DESCRIPTORS = 1 + Jobs.DESCRIPTORS
    """Number of descriptors that the constructor opens."""

    def __init__(self, listener: int, context: GuestContext) -> None:
        """`listener` is the descriptor of a listening stream socket."""
        self.options = Options("")
        self.loop = Loop()
        self.context = context
        self._listener = listener
        self._boot = os.urandom(6).hex()
        spill = Spill(context.spill_fd, owner=context.name)
        if context.is_secondary:  # PID 1 is the first guest of its box, so it finds nothing to clear
            spill.clear()
        self.jobs = Jobs(
            self.loop,
            spill,
            prefix=f"{self._boot[:6]}-",
            oom_fd=context.oom_fd,
            strays=Strays(is_init=context.is_init, is_secondary=context.is_secondary),
            private_fds=[fd for fd in (context.spill_fd, context.oom_fd, listener) if fd is not None],
        )
        self._connections: set[Connection] = set()
        self._orphan_timer: Timer | None = None
        self._jobs_keep_box = False
        """A keeper left the box on purpose, so running jobs hold off the orphan timer."""
        self._had_running_job = False
        self._ttl_timer: Timer | None = None
        os.set_blocking(listener, False)
        self.loop.watch(listener, READ, self._accept)

    def begin(self, options: Options) -> None:
        """Apply the options and start the timers."""
        self.options = options
        self.jobs.begin(options.workdir, options.env, options.shell)
        self._restart_orphan_timer()
        if options.ttl_deadline:
            self._ttl_timer = self.loop.call_at(options.ttl_deadline, self._end)

    def run(self) -> None:
        """Serve until the loop is stopped. Callers, such as the warm-up of a zygote, thereby need not know the loop."""
        self.loop.run()

    def _accept(self, _events: int) -> None:
        fd = self._listener
        # The socket object is made only now: it touches a dozen pages, and most boxes never see a second keeper.
        listener = socket.socket(fileno=fd)
        try:
            sock, _ = listener.accept()
        except OSError:
            # The peer is gone again, or no descriptor is free; then epoll would report the listener again at once.
            self.loop.unwatch(fd)
            self.loop.call_later(ACCEPT_RETRY_SECONDS, lambda: self.loop.watch(fd, READ, self._accept))
            return
        finally:
            listener.detach()
        if self.options.may_connect is not None and not self.options.may_connect(sock):
            sock.close()
            return
        self.add_connection(sock.detach())

    def add_connection(self, fd: int) -> None:
        """Serve the peer at the other end of this stream socket."""
        connection = Connection(self, fd, _OPERATIONS)
        self._connections.add(connection)
        if self._orphan_timer is not None:
            self._orphan_timer.cancel()
        connection.send_hello(
            {
                "version": VERSION,
                "box_id": self.options.box_id,
                "pid": os.getpid(),
                "boot": self._boot,
                "jobs": len(self.jobs.by_id),
            }
        )

    def connection_closed(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self._connections.discard(connection)
        self._restart_orphan_timer()

    def _restart_orphan_timer(self) -> None:
        """Start the orphan timer if nobody is connected, and stop it otherwise."""
        if self._orphan_timer is not None:
            self._orphan_timer.cancel()
        if not self._connections and self.options.orphan_grace > 0:
            self._orphan_timer = self.loop.call_later(self.options.orphan_grace, self._on_orphan_timeout)

    def _on_orphan_timeout(self) -> None:
        """End the box, unless it was left on purpose and still has, or had at the last timeout, a running job."""
        has_running_job = self._jobs_keep_box and self.jobs.running > 0
        if has_running_job or self._had_running_job:
            self._had_running_job = has_running_job
            self._restart_orphan_timer()
        else:
            self._end()

    def clock(self, channel: Channel, fields: Fields) -> None:
        """Set the timers from the keeper's values, so that they hold without it; ttl counts from now, 0 means never."""
        grace, ttl = fields.get("orphan_grace"), fields.get("ttl")
        if grace is not None:
            self.options.orphan_grace = float(grace)
        self._jobs_keep_box = bool(fields.get("works_alone", self._jobs_keep_box))
        if ttl is not None:
            if self._ttl_timer is not None:
                self._ttl_timer.cancel()
            self._ttl_timer = self.loop.call_later(float(ttl), self._end) if ttl > 0 else None
        channel.reply()

    def view(self, channel: Channel, fields: Fields) -> None:
        """Write the entries of /proc that show the box's limits. They are files of the box's user."""
        for name, text in dict(fields["files"]).items():
            entry = open_at(AT_FDCWD, f"/proc/{os.path.basename(name)}", os.O_WRONLY | os.O_TRUNC)
            try:
                os.write(entry, str(text).encode())
            finally:
                os.close(entry)
        channel.reply()

    def space(self, channel: Channel, fields: Fields) -> None:
        """Report free blocks and inodes where commands write; a filesystem without an inode count has `files` 0.

        If asked, and if /proc shows this box only, also report how many tasks the box has besides its guest, and how
        many were started after the pid in `since`.
        """
        space = {}
        for path in ("/", self.options.workdir, "/tmp"):
            try:
                directory = open_at(AT_FDCWD, path, os.O_PATH)  # a link in the path may lead to the host
            except OSError:
                continue
            try:
                stat = os.fstatvfs(directory)
            finally:
                os.close(directory)
            space[path] = {
                "size": stat.f_blocks * stat.f_frsize,
                "free": stat.f_bavail * stat.f_frsize,
                "files": stat.f_files,
                "files_free": stat.f_favail,
                "read_only": bool(stat.f_flag & os.ST_RDONLY),
            }
        counts_tasks = fields.get("tasks") and self.context.is_init
        tasks = sum(process.threads for process in processes()) if counts_tasks else None
        since = fields.get("since")
        started = max(0, newest_pid() - since) if counts_tasks and isinstance(since, int) and since > 0 else None
        channel.reply({"space": space, "tasks": tasks, "started": started})

    def usage(self, channel: Channel, _fields: Fields) -> None:
        """Report the CPU seconds of all commands; running ones are included if /proc shows this box only."""
        ended = os.times()
        live = processes() if self.context.is_init else []
        tick = os.sysconf("SC_CLK_TCK")
        user = ended.children_user + sum(process.user_ticks for process in live) / tick
        system = ended.children_system + sum(process.system_ticks for process in live) / tick
        channel.reply({"cpu_user_sec": user, "cpu_system_sec": system})

    def hold(self, channel: Channel, fields: Fields) -> None:
        """Stand still while the host switches the box's files, until it closes this connection.

        The answer says what still works in the box; then the guest does not stand still. `guests` are the pids of the
        box's other guests. On request, the answer carries this box's user and mount namespaces: only the guest itself
        may open them, because it is not dumpable.
        """
        self.jobs.reap()
        others = [other for each in self._connections for other in each.channels.values() if other is not channel]
        busy = [other.op for other in others if other.op not in _HARMLESS]
        if self.context.is_init:
            guests = fields.get("guests", ())
            busy += [f"process {process.pid}" for process in processes() if process.pid not in guests]
        names = ("user", "mnt") if fields.get("namespaces") else ()
        namespaces = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names]
        try:
            descriptor = channel.hand_over({"busy": busy[:MAX_BUSY_SHOWN], "count": len(busy)}, namespaces)
        finally:
            for fd in namespaces:
                os.close(fd)
        if busy or not fields.get("wait"):
            return
        for other in others:
            if other.op == "files.watch":  # inotify would go on watching the old view, where nothing changes any more
                stop = other.on_cancel
                other.fail(Failure("conflict", "the box's files were switched", remedy="watch again", switched=True))
                if stop is not None:
                    stop()
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        waiting.poll(HOLD_SECONDS * 1000)

    def _end(self) -> None:
        """End the box: when PID 1 exits, the kernel kills every process of its pid namespace."""
        self.jobs.kill_all(self.context.is_init)
        os._exit(0)


def _ping(_guest: Guest, channel: Channel, _fields: Fields) -> None:
    channel.reply()


# All guests share one table, because they are forked from one process and share its memory until they write to it.
_OPERATIONS: dict[str, Operation] = {
    "ping": _ping,
    "clock": Guest.clock,
    "space": Guest.space,
    "view": Guest.view,
    "usage": Guest.usage,
    "hold": Guest.hold,
    **job_operations.OPERATIONS,
    **ports.OPERATIONS,
    **driver.CHANNEL_OPERATIONS,
}


def ignore_signals() -> None:
    """Ignore the signals that the user's processes could send to interrupt PID 1; Python has a handler for SIGINT.

    A fork inherits ignored signals, so a process that forks many guests calls this once.
    """
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def serve(
    listener: socket.socket | int,
    options: Options,
    context: GuestContext,
    *,
    first: socket.socket | int | None = None,
    operations: Mapping[str, Operation] | None = None,
    on_created: Callable[[Guest], None] | None = None,
) -> NoReturn:
    """Run a guest and never return. The caller is single-threaded, unprivileged, and imported this before it changed
    root.

    `first` is the socket of a keeper that is already connected, `operations` adds operations to those of every guest,
    and `on_created` may let the new guest watch more descriptors before it begins.
    """
    _OPERATIONS.update(operations or {})
    ignore_signals()
    for fd in range(3):
        _ensure_open(fd)
    _set_close_on_exec()
    guest = Guest(_descriptor(listener), context)
    if on_created is not None:
        on_created(guest)
    guest.begin(options)
    gc.freeze()
    if options.on_ready is not None:
        options.on_ready()
    if first is not None:
        guest.add_connection(_descriptor(first))
    while True:
        guest.run()


def _descriptor(sock: socket.socket | int) -> int:
    return sock if isinstance(sock, int) else sock.detach()


def _ensure_open(fd: int) -> None:
    """Open /dev/null as `fd` if it is closed: a pipe with the number of a standard stream would confuse its child."""
    try:
        os.fstat(fd)
    except OSError:
        os.open("/dev/null", os.O_RDWR)


def _set_close_on_exec() -> None:
    """Keep commands from inheriting any of the guest's descriptors, because posix_spawn closes none."""
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
