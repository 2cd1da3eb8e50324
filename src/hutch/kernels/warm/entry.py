"""From the template into a box: join its control group and namespaces, drop everything, and serve as a kernel guest.

The steps are those of a root guest (`providers.native.spawn.enter`), but the guest runs as the box's ordinary user,
with the same filter, Landlock domain and limits as every process of the box. Standard library only.
"""

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from hutch.guest import main as guest
from hutch.guest.channels import Channel, Fields
from hutch.guest.spawn import OomScore
from hutch.kernels.programs.python.kernel import Prepared
from hutch.linux import identity, kernel, landlock, pid_namespace, seccomp
from hutch.providers.native.spawn import kernel_limits, wire
from hutch.providers.native.spawn.netlink_permits import NetlinkPermits

_NAMESPACES = (
    kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWNET | kernel.CLONE_NEWCGROUP
)  # fmt: skip
_GUEST_OOM_SCORE, _KERNEL_OOM_SCORE = "400", "800"
"""Where memory runs out, a kernel goes first, then the guest that all kernels share, and the box's own guest last."""

_PLACEHOLDER_SECONDS = 120.0
_BACKLOG = 64


class Settings(NamedTuple):
    """Everything that is the same for every box."""

    last_capability: int
    filter: seccomp.Filter
    domain: landlock.Domain
    command_line: kernel.CommandLine


class EntryRequest(NamedTuple):
    """The box to enter. All descriptors were opened by the keeper."""

    pidfd: int
    listener: int
    options: int
    """The guest's options with the box's environment and secrets. The template never reads them."""
    report: int
    groups: tuple[int, ...]
    """The `tasks` files of v1 groups, and with `unified` the directory of the v2 group as the last."""
    unified: bool
    pid: int
    """A process of the box, whose limits are copied."""
    has_id_ranges: bool


class Entry:
    """Runs in the fork of the template, and never returns."""

    def __init__(self, settings: Settings, request: EntryRequest, prepared: Prepared) -> None:
        self._settings = settings
        self._request = request
        self._prepared = prepared
        self._sock = socket.socket(fileno=os.dup(request.report))
        self._step = "begin"
        self._first: Fields = {}

    def enter(self) -> NoReturn:
        request = self._request
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            kept = (request.pidfd, request.listener, request.options, *request.groups)
            kernel.close_all_but([self._sock.fileno(), *kept])
            kernel.run_calls(kernel_limits.rlimit_calls_of(request.pid))
            _set_oom_score(_GUEST_OOM_SCORE)
            self._step = "join the control group"
            for tasks in request.groups[: -1 if request.unified else None]:
                os.write(tasks, b"0")
            self._step = "enter the namespaces"
            kernel.setns(request.pidfd, _NAMESPACES)
            if request.has_id_ranges:
                os.setgroups([])
                os.setresgid(0, 0, 0)
                os.setresuid(0, 0, 0)
            base = os.open("/", os.O_PATH | os.O_CLOEXEC)
            os.chroot("m")
            os.chdir("/")
            kernel.close_all_but([self._sock.fileno(), base, request.listener, request.options])
            self._step = "start the guest"
            pid = pid_namespace.fork_into_pid_namespace()
            wire.send(self._sock, {"pid": pid})
        except BaseException as error:
            self._report(error)
            os._exit(1)
        self._serve(base)

    def _serve(self, base: int) -> NoReturn:
        request, settings = self._request, self._settings
        try:
            settings.command_line.show("hutch-kernels")
            os.setsid()
            self._step = "give up privileges"
            kernel.run_calls(identity.drop_bounding_set_calls(settings.last_capability, frozenset()))
            kernel.run_calls(identity.become_user_calls(identity.USER, has_id_ranges=request.has_id_ranges))
            kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
            settings.domain.enter((base,))
            os.close(base)
            asking = settings.filter.load()
            kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
            self._run_guest(asking)
        except BaseException as error:
            self._report(error)
            os._exit(1)

    def _run_guest(self, asking: int) -> NoReturn:
        self._step = "serve"
        request = self._request
        # From now on SO_PEERCRED names this process to whoever connects, and not the keeper that bound the socket.
        with socket.socket(fileno=os.dup(request.listener)) as listener:
            listener.listen(_BACKLOG)
        given = json.loads(wire.read_memfd(request.options))
        self._first = given.pop("kernel")
        options = guest.Options(**given)
        context = guest.GuestContext(is_secondary=True, name="kernels")
        guest.serve(
            request.listener, options, context, operations={"kernel": self._start_kernel},
            on_created=lambda made: self._created(made, asking),
        )  # fmt: skip

    def _created(self, made: guest.Guest, asking: int) -> None:
        if asking >= 0:
            NetlinkPermits(made.loop, asking)
        made.loop.call_later(0.0, lambda: self._begin(made))

    def _begin(self, made: guest.Guest) -> None:
        """Start the first kernel, which the box was entered for, and report both."""
        wire.send(self._sock, {"ready": True, "started": self._start_job(made, self._first)})
        self._sock.close()

    def _report(self, error: BaseException) -> None:
        try:
            wire.send(self._sock, wire.error_message(self._step, error))
        except OSError:
            return  # The keeper is gone, so nobody reads the report.

    def _start_kernel(self, made: guest.Guest, channel: Channel, fields: Fields) -> None:
        """The guest's operation that starts a kernel as a job."""
        channel.reply(self._start_job(made, fields))

    def _start_job(self, made: guest.Guest, fields: Fields) -> Fields:
        job = made.jobs.start(
            ["python3", "(kernel)"], cwd=fields.get("cwd"), env=fields.get("env"), name=str(fields.get("name", "")),
            with_input=True, wait_for_reader=True,
            starter=self._fork_placeholder if fields.get("placeholder") else self._fork_kernel,
        )  # fmt: skip
        return {"job": job.id, "pid": job.pid, "command": job.argv, "started_at": job.started_at}

    def _fork_kernel(
        self, _argv: Sequence[str], env: Mapping[bytes, bytes], cwd: str, actions: Sequence[tuple[Any, ...]],
        _score: OomScore,
    ) -> int:  # fmt: skip
        """Fork instead of spawning: the child has everything imported."""
        return self._fork(actions, lambda: self._prepared.become(env, cwd))

    def _fork_placeholder(
        self, _argv: Sequence[str], _env: Mapping[bytes, bytes], _cwd: str, actions: Sequence[tuple[Any, ...]],
        _score: OomScore,
    ) -> int:  # fmt: skip
        """Fork a process that waits for the memory of a kernel of another box."""
        return self._fork(actions, lambda: time.sleep(_PLACEHOLDER_SECONDS))

    def _fork(self, actions: Sequence[tuple[Any, ...]], work: Callable[[], None]) -> int:
        forked = os.fork()
        if forked:
            return forked
        try:
            os.setsid()
            for kind, *numbers in actions:
                if kind == os.POSIX_SPAWN_DUP2:
                    os.dup2(*numbers)
            kernel.close_from(3)
            # Like any program of the box: its own user may look at it, and send it signals.
            kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
            _set_oom_score(_KERNEL_OOM_SCORE)
            self._settings.command_line.show("python3")
            work()
        finally:
            os._exit(1)


def _set_oom_score(value: str) -> None:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(value)
