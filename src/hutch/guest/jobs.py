"""Jobs: started, read, reaped, timed out, killed, remembered within bounds.

A job has *ended* when its process was reaped, and is *settled* when what it wrote has been read. Descendants that hold
its output open are not waited for: the job is `lingering`, and what they write is still read while they live.
"""

import errno
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from hutch.guest.loop import Loop, Timer, guarded
from hutch.guest.operations import Failure
from hutch.guest.output import Output, Spill
from hutch.guest.pipes import Input, Pump
from hutch.guest.processes import Strays
from hutch.guest.spawn import OomScore, environment, find_shell, kill_session, open_terminal, spawn, terminal_actions

MAX_ENDED = 4096
MAX_LINGERING = 64
"""Ended jobs whose descendants' output is still read; each holds two descriptors."""
ENDED_MEMORY = 8 << 20
"""Output of ended jobs that stays in memory; the oldest moves to the spill file first."""
MAX_SESSIONS = 4096
"""Sessions of ended jobs that are still known; what an older one left behind counts as nobody's."""
AFTERMATH = 0.5
"""How long a killed job's descendants may take to let go of its output before it settles without them."""


class Job:
    """One process and what it wrote."""

    __slots__ = (
        "argv", "began", "cancelled", "cleared", "duration", "err", "exit_code", "followed", "id", "input", "killed",
        "lingering", "name", "on_news", "out", "pid", "pty", "pumps", "seen", "settled", "shared", "signal",
        "started_at", "timed_out", "timeout", "timer", "usage",
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
        """User and system seconds, largest resident set in kB; never below the guest's, which it was until its exec."""
        self.timed_out = False
        self.cancelled = False
        self.killed = False
        self.lingering = False
        self.settled = False
        self.followed = False
        """Its reader, for whom it waits, has come."""
        self.cleared = 0
        """Processes left behind by earlier jobs that were killed so that it could start."""
        self.shared = False
        """Another job ran at some time during this one: what happened to the box may have been its doing."""
        self.seen = False
        """Its output was read to the end by somebody."""
        self.on_news: list[Callable[[], None]] = []
        """Called after output came, the input closed, or the job settled."""

    @property
    def ended(self) -> bool:
        return self.duration is not None

    def news(self) -> None:
        for listener in tuple(self.on_news):
            guarded(listener)

    def let_go(self) -> None:
        """Whoever read along is gone: the process no longer waits for anybody."""
        for pump in self.pumps:
            if pump.reader_at is not None:
                pump.reader_at = None
                pump.output.discard = False
                pump.resume()

    def kill(self) -> None:
        self.killed = True
        kill_session(self.pid)


class Jobs:
    """The table of a guest's jobs."""

    DESCRIPTORS = 3
    """How many it opens when it is made."""

    def __init__(
        self,
        loop: Loop,
        spill: Spill,
        prefix: str,
        oom_fd: int | None,
        strays: Strays,
        hidden: Sequence[int] = (),
    ) -> None:
        self.by_id: dict[str, Job] = {}
        self._by_pid: dict[int, Job] = {}
        self._ended: dict[str, Job] = {}
        self._lingering: dict[str, Job] = {}
        self._left: dict[int, None] = {}
        """Sessions of ended jobs, oldest first: what is in one of them is that job's, whoever else ends."""
        self._held = 0
        """Bytes of `_ended` in memory when they settled, as `_weights` has them one by one."""
        self._weights: dict[str, int] = {}
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
        # which from a directory of the host leads all over the host: close-on-exec comes too late for that.
        self._hide = tuple((os.POSIX_SPAWN_CLOSE, fd) for fd in hidden)
        self._nothing = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        spill.make_room = self._make_room
        loop.on_child(self.reap)

    def begin(self, workdir: str, env: Mapping[str, str], shell: str) -> None:
        """Where commands run, and with what; `shell` is for those that are a text, empty: the one there is."""
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
        patient: bool = False,
    ) -> Job:
        argv = self._in_shell(command) if isinstance(command, str) else command
        if not argv or not command:
            raise Failure("invalid", "the command is empty")
        self._number += 1
        job_id = f"{self._prefix}{self._number}"
        job = Job(job_id, argv, name, Output(self._spill, f"{job_id}.out"), Output(self._spill, f"{job_id}.err"))
        where = os.path.join(self._workdir, cwd) if cwd else self._workdir
        whole_env = environment(self._env, env)
        try:
            self._launch(job, where, whole_env, with_input, pty)
        except Failure as failure:
            if failure.details.get("errno") != "EAGAIN":
                raise
            job.cleared = self.make_room()
            if not job.cleared:
                raise
            self._launch(job, where, whole_env, with_input, pty)
        self._left.pop(job.pid, None)
        if self._by_pid or self._lingering:
            job.shared = True
            for other in self._by_pid.values():
                other.shared = True
        self._by_pid[job.pid] = job
        self.by_id[job_id] = job
        if patient:
            for pump in job.pumps:
                pump.reader_at = 0
                pump.output.discard = True
        if timeout is not None:
            job.timeout = timeout
            job.timer = self._loop.after(timeout, lambda: self._time_out(job))
        return job

    def _in_shell(self, command: str) -> list[str]:
        # Not before: a box need not wait for it.
        self._shell = self._shell or find_shell()
        return [self._shell, "-c", command]

    def make_room(self) -> int:
        """Kill what ended jobs have left behind; how many that were."""
        return self._strays.make_room(self._by_pid, self.reap)

    def _launch(
        self, job: Job, cwd: str, env: Mapping[bytes, bytes], with_input: bool, pty: tuple[int, int] | None
    ) -> None:
        try:
            if pty is not None:
                self._start_in_terminal(job, cwd, env, *pty)
            else:
                self._start_on_pipes(job, cwd, env, with_input)
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "")
            raise Failure(
                "not_runnable", f"no pipes for {job.argv[0][:200]!r}: {error.strerror}", errno=name, what="pipes"
            ) from error

    def _start_on_pipes(self, job: Job, cwd: str, env: Mapping[bytes, bytes], with_input: bool) -> None:
        fds: list[int] = []
        try:
            fds += os.pipe()
            fds += os.pipe()
            if with_input:
                fds += os.pipe()
            actions = (
                (os.POSIX_SPAWN_DUP2, fds[4] if with_input else self._nothing, 0),
                (os.POSIX_SPAWN_DUP2, fds[1], 1),
                (os.POSIX_SPAWN_DUP2, fds[3], 2),
                *self._hide,
            )
            job.pid = spawn(job.argv, env, cwd, actions, self._score)
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
        self._attend(job, fds[0], fds[2])

    def _start_in_terminal(self, job: Job, cwd: str, env: Mapping[bytes, bytes], rows: int, cols: int) -> None:
        master, slave = open_terminal(rows, cols)
        ours = [master]
        try:
            ours.append(os.dup(master))
            job.pid = spawn(job.argv, env, cwd, (*terminal_actions(slave), *self._hide), self._score)
        except BaseException:
            for fd in ours:
                os.close(fd)
            raise
        finally:
            os.close(slave)
        job.pty = True
        job.input = Input(self._loop, ours[1], farewell=b"\x04")
        self._attend(job, master)

    def _attend(self, job: Job, *fds: int) -> None:
        def progress() -> None:
            if job.ended and not job.settled:
                self._settle(job)
            elif job.on_news:
                job.news()
            for pump in job.pumps:
                if pump.hung and job.settled:
                    pump.close()
            if job.lingering and not any(pump.open for pump in job.pumps):
                self._lingering.pop(job.id, None)

        job.pumps = tuple(
            Pump(self._loop, fd, output, progress) for fd, output in zip(fds, (job.out, job.err), strict=False)
        )

    # --- ending ------------------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Every child that has ended: ours, and as PID 1 also the orphans of the box."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            job = self._by_pid.pop(pid, None)
            if job is None:
                continue
            self._left[pid] = None
            if len(self._left) > MAX_SESSIONS:
                del self._left[next(iter(self._left))]
            job.duration = time.monotonic() - job.began
            job.usage = (usage.ru_utime, usage.ru_stime, usage.ru_maxrss)
            if os.WIFSIGNALED(status):
                job.signal = os.WTERMSIG(status)
            else:
                job.exit_code = os.WEXITSTATUS(status)
            if job.timer is not None:
                job.timer.cancel()
            if job.input is not None:
                job.input.close()
                job.news()  # writers must know before anybody hears that the job has ended
            if job.killed:
                job.timer = self._loop.after(AFTERMATH, partial(self._settle, job, patience=False))
            self._settle(job)

    def _settle(self, job: Job, patience: bool = True) -> None:
        """Take what it wrote. Settled, unless a reader or the death of killed descendants has to be waited for."""
        if job.settled:
            return
        for pump in job.pumps:
            pump.drain()
        waiting = any(pump.open for pump in job.pumps)
        if waiting and (any(pump.paused for pump in job.pumps) or (job.killed and patience)):
            job.news()
            return
        if job.timer is not None:
            job.timer.cancel()
        job.settled = True
        job.lingering = waiting
        self._ended[job.id] = job
        if waiting:
            self._lingering[job.id] = job
            job.let_go()
        job.news()
        job.on_news.clear()
        if job.id in self._ended:
            self._weights[job.id] = job.out.held + job.err.held
            self._held += self._weights[job.id]
            self._keep_bounds()

    def _time_out(self, job: Job) -> None:
        if not job.ended:
            job.timed_out = True
            self._end(job)

    def cancel(self, job: Job) -> None:
        if not job.ended:
            job.cancelled = True
            self._end(job)

    def _end(self, job: Job) -> None:
        """The session, and whatever has left it."""
        job.kill()
        others = self._left.keys() | self._by_pid.keys()
        others.discard(job.pid)
        self._strays.end_with(job.pid, others)

    def signal(self, job: Job, number: int) -> None:
        """To the process group; SIGKILL to all that is the job's. Nothing happens to a job that has ended alone."""
        if job.ended and job.id not in self._lingering:
            return
        if number == signal.SIGKILL:
            job.kill() if job.ended else self._end(job)
            return
        with suppress(ProcessLookupError):
            os.killpg(job.pid, number)

    def kill_all(self, everything: bool) -> None:
        """`everything`: all processes of the pid namespace but the guest, if it is its init."""
        if everything and os.getpid() == 1:
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        for job in tuple(self._by_pid.values()):
            job.cancelled = True
            job.kill()

    # --- remembering -------------------------------------------------------------------------------------------

    def forget(self, job: Job) -> None:
        self._release(job)
        job.pumps = ()  # a cycle through its callback: without it the job goes at once, no collector needed
        job.out.forget()
        job.err.forget()
        self.by_id.pop(job.id, None)
        self._ended.pop(job.id, None)
        self._held -= self._weights.pop(job.id, 0)

    def _release(self, job: Job) -> None:
        """Stop reading what its descendants write."""
        self._lingering.pop(job.id, None)
        for pump in job.pumps:
            pump.close()

    def _keep_bounds(self) -> None:
        if len(self._ended) > MAX_ENDED:
            self.forget(next((job for job in self._ended.values() if job.seen), next(iter(self._ended.values()))))
        if len(self._lingering) > MAX_LINGERING:
            self._release(next(iter(self._lingering.values())))
        while self._held > ENDED_MEMORY:
            job_id = next(iter(self._weights))
            self._held -= self._weights.pop(job_id)
            self._ended[job_id].out.park()
            self._ended[job_id].err.park()

    def _make_room(self, size: int) -> None:
        """Newer output is worth more than an ended job's: first what was read, then the oldest."""
        for job in sorted(self._ended.values(), key=lambda job: not job.seen):
            if self._spill.left >= size:
                return
            if job.out.spilled or job.err.spilled:
                job.out.forget()
                job.err.forget()
