"""The operations on jobs (run, start, read, follow, wait, write, signal, …), and how output is sent to the host."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from hutch.guest.channels import Channel, Fields, Operation
from hutch.guest.jobs import Job, Jobs
from hutch.guest.loop import Loop, Timer
from hutch.guest.operations import Failure
from hutch.guest.protocol import ERR, HEADER, MAX_PAYLOAD, OUT
from hutch.guest.spawn import resize_terminal

if TYPE_CHECKING:
    from hutch.guest.main import Guest


DEFAULT_RESULT_BYTES = 1 << 20
KILL_SECONDS = 5.0
"""How long the answer to `kill_all` waits for the ends of jobs."""
FOLLOW_TIMEOUT = 10.0
"""Seconds that a job started with `follow` waits for its live reader before it continues without one."""
CHUNK = 1 << 18
"""Largest piece of output that is sent at once."""


def _run(guest: "Guest", channel: Channel, fields: Fields) -> None:
    job = _start_job(guest.jobs, fields, with_input=bool(fields.get("stdin")))
    keep = int(fields.get("keep", DEFAULT_RESULT_BYTES))

    def finished() -> None:
        if job.settled:
            Result(channel, job, keep, done)

    def done(complete: bool) -> None:
        if (complete and not job.lingering) or job.cancelled:
            guest.jobs.forget(job)

    job.listeners.append(finished)
    channel.on_cancel = lambda: guest.jobs.cancel(job)
    target = job.input
    if target is not None:
        # Credit is granted as the process reads; what it never reads needs none.
        channel.on_data = lambda data: target.write(data, channel.grant)
        channel.on_end = target.end


def _start(guest: "Guest", channel: Channel, fields: Fields) -> None:
    job = _start_job(guest.jobs, fields, with_input=fields.get("stdin") is not False)
    if fields.get("follow"):
        guest.loop.call_later(FOLLOW_TIMEOUT, lambda: None if job.followed else job.detach_reader())
    channel.reply({"job": job.id, "pid": job.pid, "command": job.argv, "started_at": job.started_at})


def _read(guest: "Guest", channel: Channel, fields: Fields) -> None:
    Read(guest.loop, channel, guest.jobs.find(fields["job"]), fields)


def _follow(guest: "Guest", channel: Channel, fields: Fields) -> None:
    Follow(channel, guest.jobs.find(fields["job"]), int(fields.get("stdout", 0)), int(fields.get("stderr", 0)))


def _wait(guest: "Guest", channel: Channel, fields: Fields) -> None:
    job = guest.jobs.find(fields["job"])
    keep = int(fields.get("keep", DEFAULT_RESULT_BYTES))

    timer: Timer | None = None

    def settled() -> None:
        if not job.settled:
            return
        if timer is not None:
            timer.cancel()
        Result(channel, job, keep, lambda _whole: None)

    def still_running() -> None:
        if channel.open and not job.settled:
            job.listeners.remove(settled)
            channel.reply(job_status(job))

    if job.settled:
        settled()
        return
    subscribe(channel, job, settled)
    if fields.get("wait") is not None:
        timer = guest.loop.call_later(float(fields["wait"]), still_running)


def _write(guest: "Guest", channel: Channel, fields: Fields) -> None:
    job = guest.jobs.find(fields["job"])
    if job.input is None or not job.input.accepting:
        raise _input_closed(job)
    target = job.input

    def closed() -> None:
        if not target.open:
            channel.fail(_input_closed(job))

    def end() -> None:
        job.listeners.remove(closed)
        target.end()
        channel.reply()

    def data(content: bytes) -> None:
        target.write(content, channel.grant)
        closed()

    channel.on_data = data
    channel.on_end = end
    subscribe(channel, job, closed)
    channel.event({"open": True})


def _signal(guest: "Guest", channel: Channel, fields: Fields) -> None:
    guest.jobs.signal(guest.jobs.find(fields["job"]), int(fields["number"]))
    channel.reply()


def _resize(guest: "Guest", channel: Channel, fields: Fields) -> None:
    job = guest.jobs.find(fields["job"])
    if not job.pty:
        raise Failure("unsupported", f"job {job.id} has no terminal", remedy="start it with pty")
    if job.pumps and job.pumps[0].open:
        resize_terminal(job.pumps[0].fd, int(fields["rows"]), int(fields["cols"]))
    channel.reply()


def _list_jobs(guest: "Guest", channel: Channel, _fields: Fields) -> None:
    channel.reply({"jobs": [job_info(job) for job in guest.jobs.by_id.values()]})


def _info(guest: "Guest", channel: Channel, fields: Fields) -> None:
    channel.reply(job_info(guest.jobs.find(fields["job"])))


def _forget(guest: "Guest", channel: Channel, fields: Fields) -> None:
    job = guest.jobs.find(fields["job"])
    if not job.settled:
        raise Failure("conflict", f"job {job.id} still runs", remedy="end it first")
    guest.jobs.forget(job)
    channel.reply()


def _make_room(guest: "Guest", channel: Channel, _fields: Fields) -> None:
    channel.reply({"cleared": guest.jobs.kill_strays()})


def _kill_all(guest: "Guest", channel: Channel, _fields: Fields) -> None:
    """Answer when the killed jobs have ended, or in a while: a process may be stuck in the kernel."""
    killed = guest.jobs.kill_all(guest.context.is_init)

    def answer() -> None:
        timer.cancel()
        if channel.open:
            channel.reply()

    def look() -> None:
        if all(job.ended for job in killed):
            answer()

    timer = guest.loop.call_later(KILL_SECONDS, answer)
    for job in killed:
        job.listeners.append(look)
    look()


def _start_job(jobs: Jobs, fields: Fields, with_input: bool) -> Job:
    pty = fields.get("pty")
    return jobs.start(
        fields["command"],
        cwd=fields.get("cwd"),
        env=fields.get("env"),
        name=str(fields.get("name", "")),
        timeout=fields.get("timeout_sec"),
        with_input=with_input,
        pty=(int(pty[0]), int(pty[1])) if pty else None,
        wait_for_reader=bool(fields.get("follow")),
    )


def _input_closed(job: Job) -> Failure:
    return Failure("conflict", f"job {job.id} takes no more input: it has ended, or its input was closed")


def job_info(job: Job) -> dict[str, Any]:
    """What a listing shows of a job."""
    description = {
        "command": job.argv, "name": job.name, "pty": job.pty, "started_at": job.started_at,
        "timeout_sec": job.timeout,
    }  # fmt: skip
    return job_status(job) | description


def job_status(job: Job) -> dict[str, Any]:
    """How a job ended, or its current state."""
    return {
        "job": job.id, "ended": job.settled, "exit_code": job.exit_code, "signal": job.signal,
        "timed_out": job.timed_out, "cancelled": job.cancelled, "lingering": job.lingering, "shared": job.shared,
        "wall": job.duration, "usage": job.usage, "stdout_total": job.out.total, "stderr_total": job.err.total,
        "dropped": job.out.dropped + job.err.dropped, "cleared": job.cleared, "pid": job.pid,
    }  # fmt: skip


def subscribe(channel: Channel, job: Job, listener: Callable[[], None]) -> None:
    """Call the listener on every change of the job until the channel ends; the job does not depend on it."""
    job.listeners.append(listener)

    def on_cancel() -> None:
        if listener in job.listeners:
            job.listeners.remove(listener)
        channel.fail(Failure("cancelled", "the caller gave up"))

    channel.on_cancel = on_cancel


class Result:
    """Sends head and tail of both streams, then the job's status.

    A small result goes out in one write. A large one is read from the store piece by piece as the host takes it, so
    that it is never in the box's memory as a whole.
    """

    __slots__ = ("_channel", "_done", "_facts", "_job", "_ranges", "_sent")

    def __init__(self, channel: Channel, job: Job, keep: int, done: Callable[[bool], None]) -> None:
        """`done` is called with whether this was everything the job wrote."""
        self._channel = channel
        self._job = job
        self._done = done
        self._facts = job_status(job)
        self._sent = 0
        self._ranges = [
            (kind, output, start, end)
            for kind, output in ((OUT, job.out), (ERR, job.err))
            for start, end in output.ends(max(0, keep))
        ]
        if sum(end - start for _, _, start, end in self._ranges) <= CHUNK:
            self._finish(b"".join(self._frames()))
            return
        channel.on_cancel = self._on_cancel
        channel.on_writable = self._step
        self._step()

    def _frames(self) -> Iterator[bytes]:
        while self._ranges:
            kind, data = self._next(CHUNK)
            if data:
                yield HEADER.pack(len(data), kind, self._channel.number) + data

    def _next(self, limit: int) -> tuple[int, bytes]:
        """Return the next piece of the remaining ranges, leaving out what is lost."""
        kind, output, start, end = self._ranges.pop(0)
        begin, data = output.read(start, min(limit, end - start))
        data = data[: max(0, end - begin)]
        self._sent += len(data)
        if data and begin + len(data) < end:
            self._ranges.insert(0, (kind, output, begin + len(data), end))
        return kind, data

    def _step(self) -> None:
        while self._ranges:
            room = self._channel.writable
            if room <= 0:
                return
            kind, data = self._next(min(room, CHUNK))
            if data:
                self._channel.send(kind, data)
        self._finish(b"")

    def _finish(self, frames: bytes) -> None:
        complete = self._sent == self._job.out.total + self._job.err.total
        self._job.seen = self._job.seen or complete
        self._channel.reply(self._facts, frames)
        self._done(complete)

    def _on_cancel(self) -> None:
        self._channel.fail(Failure("cancelled", "the caller gave up"))
        self._done(False)


class Read:
    """One read by cursor: it answers when a byte is available, at the end of the job, or after `wait` seconds."""

    __slots__ = ("_channel", "_cursor", "_job", "_limit", "_stderr", "_timer")

    def __init__(self, loop: Loop, channel: Channel, job: Job, fields: Fields) -> None:
        self._channel = channel
        self._job = job
        self._stderr = fields.get("stream") == "stderr"
        self._cursor = max(0, int(fields.get("cursor", 0)))
        self._limit = max(1, min(int(fields.get("limit", 1 << 16)), MAX_PAYLOAD))
        self._timer: Timer | None = None
        wait = float(fields.get("wait", 0))
        output = job.err if self._stderr else job.out
        if wait <= 0 or job.settled or output.total > self._cursor:
            self._answer()
            return
        self._timer = loop.call_later(wait, self._finish)
        subscribe(channel, job, self._check)

    def _check(self) -> None:
        output = self._job.err if self._stderr else self._job.out
        if self._job.settled or output.total > self._cursor:
            self._finish()

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._check in self._job.listeners:
            self._job.listeners.remove(self._check)
        if self._channel.open:
            self._answer()

    def _answer(self) -> None:
        job, channel = self._job, self._channel
        output = job.err if self._stderr else job.out
        start, data = output.read(self._cursor, self._limit)
        end = start + len(data)
        eof = job.settled and end >= output.total
        if eof and (job.err if not self._stderr else job.out).total == 0:
            job.seen = True
        if data:
            channel.send(ERR if self._stderr else OUT, data)
        channel.reply({"cursor": end, "eof": eof, "dropped": max(0, start - self._cursor)})


class Follow:
    """Sends both streams from their cursors while they grow, and answers when the job has settled and all is sent."""

    __slots__ = ("_channel", "_cursors", "_is_live_reader", "_job")

    def __init__(self, channel: Channel, job: Job, stdout: int, stderr: int) -> None:
        self._channel = channel
        self._job = job
        self._cursors = [max(0, stdout), max(0, stderr)]
        self._is_live_reader = job.wants_reader and not job.followed and not job.settled
        if self._is_live_reader:
            job.attach_reader(self._cursors)
        channel.on_writable = self._step
        channel.on_cancel = self._on_cancel
        job.listeners.append(self._step)
        self._step()

    def _step(self) -> None:
        job, channel = self._job, self._channel
        for index, output in enumerate((job.out, job.err)):
            cursor = self._cursors[index]
            while cursor < output.total:
                room = channel.writable
                if room <= 0:
                    break
                start, data = output.read(cursor, min(room, CHUNK))
                if start > cursor:
                    if not channel.event({"stream": "stderr" if index else "stdout", "skipped": start - cursor}):
                        break
                    data = data[: channel.writable]
                cursor = start + len(data)
                self._cursors[index] = cursor
                if data:
                    channel.send(ERR if index else OUT, data)
            if self._is_live_reader and index < len(job.pumps):
                pump = job.pumps[index]
                if pump.reader_at is not None:
                    pump.reader_at = cursor
                    if pump.paused:
                        pump.resume()
        if job.settled and self._cursors[0] >= job.out.total and self._cursors[1] >= job.err.total:
            self._unsubscribe()
            job.seen = True
            channel.reply(job_status(job))

    def _unsubscribe(self) -> None:
        if self._step in self._job.listeners:
            self._job.listeners.remove(self._step)

    def _on_cancel(self) -> None:
        self._unsubscribe()
        if self._is_live_reader:
            self._job.detach_reader()
        self._channel.fail(Failure("cancelled", "the caller gave up"))


OPERATIONS: dict[str, Operation] = {
    "run": _run, "start": _start, "read": _read, "follow": _follow, "wait": _wait, "write": _write, "signal": _signal,
    "resize": _resize, "list": _list_jobs, "info": _info, "forget": _forget, "kill_all": _kill_all,
    "make_room": _make_room,
}  # fmt: skip
