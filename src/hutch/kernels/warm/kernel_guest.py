"""The kernel guest: a second guest of a box, which serves kernels as jobs.

Its first kernel is a process that waited beside it and enters the box with it; all others are forks of itself.
"""

import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from hutch.guest import main as guest
from hutch.guest.channels import Channel, Fields
from hutch.guest.spawn import OomScore
from hutch.kernels.programs.python.kernel import Prepared
from hutch.kernels.warm.entry import (
    Entry,
    EntryRequest,
    Settings,
    be_placeholder,
    become_program,
    streams_of,
)
from hutch.kernels.warm.first_kernel import FirstKernel
from hutch.linux import landlock
from hutch.providers.native.spawn import wire
from hutch.providers.native.spawn.netlink_permits import NetlinkPermits

_BACKLOG = 64


class Connections:
    """The descriptors by which a keeper reaches a kernel guest."""

    def __init__(self, listener: int, options: int, report: int) -> None:
        """`options` are the guest's, with the box's environment and secrets. The template never reads them."""
        self.listener = listener
        self.options = options
        self.report = socket.socket(fileno=report)

    def descriptors(self) -> tuple[int, ...]:
        return self.listener, self.options, self.report.fileno()

    def report_error(self, step: str, error: BaseException) -> None:
        """Tell the keeper which step failed."""
        try:
            wire.send(self.report, wire.error_message(step, error))
        except OSError:
            return  # The keeper is gone, so nobody reads the report.


class KernelGuest:
    """Runs in a fork of the template, and never returns."""

    def __init__(
        self, settings: Settings, connections: Connections, prepared: Prepared, first_kernel: FirstKernel | None = None
    ) -> None:
        self._settings = settings
        self._connections = connections
        self._prepared = prepared
        self._first_kernel = first_kernel
        self._first: Fields = {}

    def enter(self, request: EntryRequest) -> NoReturn:
        """Enter the box and serve there."""
        entry, connections = Entry(self._settings, request), self._connections
        try:
            kept = [*connections.descriptors()]
            if self._first_kernel is not None:
                kept.append(self._first_kernel.sock.fileno())
            base = entry.join(kept)
            wire.send(connections.report, {"pid": entry.host_pid})
            asking = entry.confine(base, "hutch-kernels", self._settings.guest_domain)
            entry.step = "serve"
            self.serve(asking)
        except BaseException as error:
            connections.report_error(entry.step, error)
            os._exit(1)

    def serve(self, asking: int) -> NoReturn:
        """Serve keepers. `asking` is the descriptor on which the process's filter asks."""
        connections = self._connections
        # From now on SO_PEERCRED names this process to whoever connects, and not the keeper that bound the socket.
        with socket.socket(fileno=os.dup(connections.listener)) as listener:
            listener.listen(_BACKLOG)
        given = json.loads(wire.read_memfd(connections.options))
        self._first = given.pop("kernel")
        options = guest.Options(**given)
        context = guest.GuestContext(is_secondary=True, name="kernels")
        guest.serve(
            connections.listener, options, context, operations={"kernel": self._start_kernel},
            on_created=lambda made: self._created(made, asking),
        )  # fmt: skip

    def _created(self, made: guest.Guest, asking: int) -> None:
        if asking >= 0:
            NetlinkPermits(made.loop, asking)
        made.loop.call_later(0.0, lambda: self._begin(made))

    def _begin(self, made: guest.Guest) -> None:
        """Start the first kernel, which the box was entered for, and report both."""
        report = self._connections.report
        wire.send(report, {"ready": True, "started": self._start_job(made, self._first)})
        report.close()

    def _start_kernel(self, made: guest.Guest, channel: Channel, fields: Fields) -> None:
        """The guest's operation that starts a kernel as a job."""
        channel.reply(self._start_job(made, fields))

    def _start_job(self, made: guest.Guest, fields: Fields) -> Fields:
        waiting, self._first_kernel = self._first_kernel, None
        is_placeholder = bool(fields.get("placeholder"))

        def start(
            _argv: Sequence[str], env: Mapping[bytes, bytes], cwd: str, actions: Sequence[tuple[Any, ...]],
            _score: OomScore,
        ) -> int:  # fmt: skip
            streams = streams_of(actions)
            if waiting is not None and waiting.begin(streams, env, cwd, is_placeholder=is_placeholder):
                return waiting.pid
            work = be_placeholder if is_placeholder else lambda: self._prepared.become(env, cwd)
            return self._fork(streams, work)

        job = made.jobs.start(
            ["python3", "(kernel)"], cwd=fields.get("cwd"), env=fields.get("env"), name=str(fields.get("name", "")),
            with_input=True, wait_for_reader=True, starter=start,
        )  # fmt: skip
        if waiting is not None and job.pid == waiting.pid:
            made.jobs.watch_exit(job, waiting.pidfd)
            NetlinkPermits(made.loop, waiting.asking)
        return {"job": job.id, "pid": job.pid, "command": job.argv, "started_at": job.started_at}

    def _fork(self, streams: Sequence[int], work: Callable[[], object]) -> int:
        """Fork instead of spawning: the child has everything imported."""
        forked = os.fork()
        if forked:
            return forked
        try:
            os.setsid()
            landlock.confine_signals(self._settings.landlock)
            become_program(streams, self._settings.command_line)
            work()
            os._exit(0)
        finally:
            os._exit(1)
