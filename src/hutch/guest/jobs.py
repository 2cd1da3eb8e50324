"""Jobs: they are started, read, reaped, timed out, killed, and remembered within bounds.

A job has *ended* when its process was reaped, and is *settled* when what it wrote has been read. Nobody waits for
descendants that hold its output open: the job is `lingering`, and what they write is still read while they live.
"""

import errno
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from hutch.guest.loop import Loop, Timer, run_guarded
from hutch.guest.operations import Failure
from hutch.guest.output import Output, Spill
from hutch.guest.pipes import Input, Pump
from hutch.guest.processes import Strays, exit_status
from hutch.guest.spawn import (
    Actions,
    OomScore,
    environment,
    find_shell,
    kill_session,
    open_terminal,
    spawn,
    terminal_actions,
)

MAX_ENDED = 4096
MAX_LINGERING = 64
"""Ended jobs whose descendants' output is still read; each holds two descriptors."""
ENDED_MEMORY = 8 << 20
"""Output of ended jobs that stays in memory; the oldest moves to the spill file first."""
MAX_SESSIONS = 4096
"""Sessions of ended jobs that are remembered; what older jobs left behind belongs to no job."""
KILL_SETTLE_SECONDS = 0.5
"""Seconds that a killed job's descendants have to close its output before it settles without them."""


Starter = Callable[[Sequence[str], Mapping[bytes, bytes], str, Actions, OomScore], int]
"""Starts a process with arguments, environment, directory and descriptors, and returns its pid; usually `spawn`."""


class Job:
    """One process and its output."""

    __slots__ = (
        "argv", "began", "cancelled", "cleared", "duration", "err", "exit_code", "followed", "id", "input", "killed",
        "lingering", "listeners", "name", "out", "pid", "pty", "pumps", "seen", "settled", "shared", "signal",
        "started_at", "timed_out", "timeout", "timer", "usage", "wants_reader",
    )  # fmt: skip

    def __init__(self, job_id: str, argv: list[str], name: str, out: Output, err: Output) -> None:
        self.id = job_id
        self.argv = argv
        self.name = name
        self.out = out
        self.err = err
        self.pid = 0
        self.pty = False
        self.pumps: tuple[Pump, ...] = ()
        self.input: Input | None = None
        self.timer: Timer | None = None
        self.timeout: float | None = None
        self.started_at = time.time()
        self.began = time.monotonic()
        self.duration: float | None = None
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.usage = (0.0, 0.0, 0)
        """User seconds, system seconds, largest resident set in kB (at least the guest's, which it was until exec).
        Zeros for a process that somebody else has reaped."""
        self.timed_out = False
        self.cancelled = False
        self.killed = False
        self.lingering = False
        self.settled = False
        self.followed = False
        """Whether the live reader that the job waits for is connected."""
        self.wants_reader = False
        """Whether the job was started with `follow`: its output waits for a reader while one is connected."""
        self.cleared = 0
        """Number of stray processes that were killed so that this job could start."""
        self.shared = False
        """Whether another job ran at some time during this one, and so may have caused what happened to the box."""
        self.seen = False
        """Whether somebody has read the output to its end."""
        self.listeners: list[Callable[[], None]] = []
        """Called after output arrived, the input closed, or the job settled."""

    @property
    def ended(self) -> bool:
        return self.duration is not None

    def notify(self) -> None:
        for listener in tuple(self.listeners):
            run_guarded(listener)

    def attach_reader(self, cursors: Sequence[int]) -> None:
        """Let the process wait for the live reader, which continues at these positions."""
        self.followed = True
        for pump, cursor in zip(self.pumps, cursors, strict=False):
            pump.reader_at = cursor
            pump.output.discard = True

    def detach_reader(self) -> None:
        """Stop pausing the process for a live reader, because that reader is gone; another one may come."""
        self.followed = False
        for pump in self.pumps:
            if pump.reader_at is not None:
                pump.reader_at = None
                pump.output.discard = False
                pump.resume()

    def kill(self) -> None:
        self.killed = True
        kill_session(self.pid)


class Jobs:
    """All jobs of a guest."""

    DESCRIPTORS = 3
    """Number of descriptors that the constructor opens."""

    def __init__(
        self,
        loop: Loop,
        spill: Spill,
        prefix: str,
        oom_fd: int | None,
        strays: Strays,
        private_fds: Sequence[int] = (),
    ) -> None:
        self.by_id: dict[str, Job] = {}
        self._by_pid: dict[int, Job] = {}
        self._ended: dict[str, Job] = {}
        self._lingering: dict[str, Job] = {}
        self._ended_sessions: dict[int, None] = {}
        """Sessions of ended jobs, oldest first. A process in one of them belongs to that job and to no other."""
        self._held_bytes = 0
        """Bytes in memory of `_ended` jobs when they settled: the sum of `_held_by_job`."""
        self._held_by_job: dict[str, int] = {}
        self._loop = loop
        self._spill = spill
        self._prefix = prefix
        self._number = 0
        self._workdir = "/"
        self._env: Mapping[bytes, bytes] = {}
        self._shell = ""
        self._score = OomScore(oom_fd)
        self._strays = strays
        # Until its exec a child has the guest's descriptors, and its program may be named /proc/self/fd/N/../..,
        # which leads from a directory of the host to anywhere on the host. Close-on-exec would come too late.
        self._close_actions = tuple((os.POSIX_SPAWN_CLOSE, fd) for fd in private_fds)
        self._dev_null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        spill.free_space = self._free_spill
        loop.on_child(self.reap)

    def begin(self, workdir: str, env: Mapping[str, str], shell: str) -> None:
        """Set the commands' directory, environment and shell (for commands given as text; empty finds one)."""
        self._workdir = workdir
        self._env = environment({}, env)
        self._shell = shell

    @property
    def running(self) -> int:
        return len(self._by_pid)

    def find(self, job_id: str) -> Job:
        job = self.by_id.get(job_id)
        if job is None:
            raise Failure("not_found", f"there is no job {job_id!r} in this box")
        return job

    # --- starting ----------------------------------------------------------------------------------------------

    def start(
        self,
        command: str | list[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        name: str = "",
        timeout: float | None = None,
        with_input: bool = False,
        pty: tuple[int, int] | None = None,
        wait_for_reader: bool = False,
        starter: Starter = spawn,
    ) -> Job:
        argv = self._in_shell(command) if isinstance(command, str) else command
        if not argv or not command:
            raise Failure("invalid", "the command is empty")
        self._number += 1
        job_id = f"{self._prefix}{self._number}"
        job = Job(job_id, argv, name, Output(self._spill, f"{job_id}.out"), Output(self._spill, f"{job_id}.err"))
        directory = os.path.join(self._workdir, cwd) if cwd else self._workdir
        full_env = environment(self._env, env)
        try:
            self._launch(job, directory, full_env, with_input, pty, starter)
        except Failure as failure:
            if failure.details.get("errno") != "EAGAIN":
                raise
            job.cleared = self.kill_strays()
            if not job.cleared:
                raise
            self._launch(job, directory, full_env, with_input, pty, starter)
        self._ended_sessions.pop(job.pid, None)
        if self._by_pid or self._lingering:
            job.shared = True
            for other in self._by_pid.values():
                other.shared = True
        self._by_pid[job.pid] = job
        self.by_id[job_id] = job
        if wait_for_reader:
            job.wants_reader = True
            for pump in job.pumps:
                pump.reader_at = 0
                pump.output.discard = True
        if timeout is not None:
            job.timeout = timeout
            job.timer = self._loop.call_later(timeout, lambda: self._time_out(job))
        return job

    def _in_shell(self, command: str) -> list[str]:
        # The shell is looked up only now, so that the start of a box does not wait for it.
        self._shell = self._shell or find_shell()
        return [self._shell, "-c", command]

    def kill_strays(self) -> int:
        """Kill what ended jobs left behind, and return the number of processes."""
        return self._strays.kill_all(self._by_pid, self.reap)

    def _launch(
        self, job: Job, cwd: str, env: Mapping[bytes, bytes], with_input: bool, pty: tuple[int, int] | None,
        starter: Starter,
    ) -> None:  # fmt: skip
        try:
            if pty is not None:
                self._start_in_terminal(job, cwd, env, *pty)
            else:
                self._start_on_pipes(job, cwd, env, with_input, starter)
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "")
            raise Failure(
                "not_runnable",
                f"cannot create pipes for {job.argv[0][:200]!r}: {error.strerror}",
                errno=name,
                what="pipes",
            ) from error

    def _start_on_pipes(
        self, job: Job, cwd: str, env: Mapping[bytes, bytes], with_input: bool, starter: Starter
    ) -> None:
        fds: list[int] = []
        try:
            fds += os.pipe()
            fds += os.pipe()
            if with_input:
                fds += os.pipe()
            actions = (
                (os.POSIX_SPAWN_DUP2, fds[4] if with_input else self._dev_null, 0),
                (os.POSIX_SPAWN_DUP2, fds[1], 1),
                (os.POSIX_SPAWN_DUP2, fds[3], 2),
                *self._close_actions,
            )
            job.pid = starter(job.argv, env, cwd, actions, self._score)
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        os.close(fds[1])
        os.close(fds[3])
        os.set_blocking(fds[0], False)
        os.set_blocking(fds[2], False)
        if with_input:
            os.close(fds[4])
            os.set_blocking(fds[5], False)
            job.input = Input(self._loop, fds[5])
        self._watch_output(job, fds[0], fds[2])

    def _start_in_terminal(self, job: Job, cwd: str, env: Mapping[bytes, bytes], rows: int, cols: int) -> None:
        master, slave = open_terminal(rows, cols)
        ours = [master]
        try:
            ours.append(os.dup(master))
            job.pid = spawn(job.argv, env, cwd, (*terminal_actions(slave), *self._close_actions), self._score)
        except BaseException:
            for fd in ours:
                os.close(fd)
            raise
        finally:
            os.close(slave)
        job.pty = True
        job.input = Input(self._loop, ours[1], end_bytes=b"\x04")
        self._watch_output(job, master)

    def _watch_output(self, job: Job, *fds: int) -> None:
        def on_progress() -> None:
            if job.ended and not job.settled:
                self._settle(job)
            elif job.listeners:
                job.notify()
            for pump in job.pumps:
                if pump.hung_up and job.settled:
                    pump.close()
            if job.lingering and not any(pump.open for pump in job.pumps):
                self._lingering.pop(job.id, None)

        job.pumps = tuple(
            Pump(self._loop, fd, output, on_progress) for fd, output in zip(fds, (job.out, job.err), strict=False)
        )

    # --- ending ------------------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Reap every child that has ended: jobs and, for PID 1, also the orphans of the box."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            job = self._by_pid.get(pid)
            if job is not None:
                job.usage = (usage.ru_utime, usage.ru_stime, usage.ru_maxrss)
                self._end(job, status)

    def watch_exit(self, job: Job, pidfd: int) -> None:
        """Learn the end of a job whose process is no child of the guest. What it has used stays unknown."""

        def reaped(_events: int) -> None:
            status = exit_status(pidfd)
            self._loop.unwatch(pidfd)
            os.close(pidfd)
            self._end(job, signal.SIGKILL if status is None else status)

        self._loop.watch(pidfd, 0, reaped)  # A hangup, which needs no bit, tells that somebody has reaped it.

    def _end(self, job: Job, status: int) -> None:
        """Note how a job's process has ended."""
        if self._by_pid.get(job.pid) is job:
            del self._by_pid[job.pid]
        self._ended_sessions[job.pid] = None
        if len(self._ended_sessions) > MAX_SESSIONS:
            del self._ended_sessions[next(iter(self._ended_sessions))]
        job.duration = time.monotonic() - job.began
        if os.WIFSIGNALED(status):
            job.signal = os.WTERMSIG(status)
        else:
            job.exit_code = os.WEXITSTATUS(status)
        if job.timer is not None:
            job.timer.cancel()
        if job.input is not None:
            job.input.close()
            job.notify()  # writers must see the closed input before anybody learns that the job has ended
        if job.killed:
            job.timer = self._loop.call_later(KILL_SETTLE_SECONDS, partial(self._settle, job, may_wait=False))
        self._settle(job)

    def _settle(self, job: Job, may_wait: bool = True) -> None:
        """Read what is left, and settle unless a reader or dying descendants must be waited for."""
        if job.settled:
            return
        for pump in job.pumps:
            pump.drain()
        waiting = any(pump.open for pump in job.pumps)
        if waiting and (any(pump.paused for pump in job.pumps) or (job.killed and may_wait)):
            job.notify()
            return
        if job.timer is not None:
            job.timer.cancel()
        job.settled = True
        job.lingering = waiting
        self._ended[job.id] = job
        if waiting:
            self._lingering[job.id] = job
            job.detach_reader()
        job.notify()
        job.listeners.clear()
        if job.id in self._ended:
            self._held_by_job[job.id] = job.out.in_memory + job.err.in_memory
            self._held_bytes += self._held_by_job[job.id]
            self._enforce_bounds()

    def _time_out(self, job: Job) -> None:
        if not job.ended:
            job.timed_out = True
            self._kill_with_escaped(job)

    def cancel(self, job: Job) -> None:
        if not job.ended:
            job.cancelled = True
            self._kill_with_escaped(job)

    def _kill_with_escaped(self, job: Job) -> None:
        """Kill the session and the processes that left it."""
        job.kill()
        others = self._ended_sessions.keys() | self._by_pid.keys()
        others.discard(job.pid)
        self._strays.kill_escaped(job.pid, others)

    def signal(self, job: Job, number: int) -> None:
        """Signal the process group; SIGKILL reaches everything of the job. A job without processes is ignored."""
        if job.ended and job.id not in self._lingering:
            return
        if number == signal.SIGKILL:
            job.kill() if job.ended else self._kill_with_escaped(job)
            return
        with suppress(ProcessLookupError):
            os.killpg(job.pid, number)

    def kill_all(self, everything: bool) -> tuple[Job, ...]:
        """Kill all jobs, and with `everything` all processes of the pid namespace if the guest is its init.

        Return the jobs, which end in a moment.
        """
        if everything and os.getpid() == 1:
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        killed = tuple(self._by_pid.values())
        for job in killed:
            job.cancelled = True
            job.kill()
        return killed

    # --- remembering -------------------------------------------------------------------------------------------

    def forget(self, job: Job) -> None:
        self._release(job)
        job.pumps = ()  # the pumps' callbacks refer to the job; this cycle would need the collector
        job.out.forget()
        job.err.forget()
        self.by_id.pop(job.id, None)
        self._ended.pop(job.id, None)
        self._held_bytes -= self._held_by_job.pop(job.id, 0)

    def _release(self, job: Job) -> None:
        """Stop reading what its descendants write."""
        self._lingering.pop(job.id, None)
        for pump in job.pumps:
            pump.close()

    def _enforce_bounds(self) -> None:
        if len(self._ended) > MAX_ENDED:
            self.forget(next((job for job in self._ended.values() if job.seen), next(iter(self._ended.values()))))
        if len(self._lingering) > MAX_LINGERING:
            self._release(next(iter(self._lingering.values())))
        while self._held_bytes > ENDED_MEMORY:
            job_id = next(iter(self._held_by_job))
            self._held_bytes -= self._held_by_job.pop(job_id)
            self._ended[job_id].out.move_to_file()
            self._ended[job_id].err.move_to_file()

    def _free_spill(self, size: int) -> None:
        """Drop spilled output of ended jobs until `size` bytes are free: first what was read, then the oldest."""
        for job in sorted(self._ended.values(), key=lambda job: not job.seen):
            if self._spill.left >= size:
                return
            if job.out.spilled or job.err.spilled:
                job.out.forget()
                job.err.forget()
