"""The operations on jobs: run, start, read, follow, wait, write, signal, resize, list, info, forget, ending."""

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


KEEP = 1 << 20
READER_COMES = 10.0
"""How long a job that was started to be followed waits for its reader before it goes on without."""


def _run(guest: "Guest", channel: Channel, fields: Fields) -> None:
    job = _begin(guest.jobs, fields, with_input=bool(fields.get("stdin")))
    keep = int(fields.get("keep", KEEP))

    def finished() -> None:
        if job.settled:
            Result(channel, job, keep, done)

    def done(whole: bool) -> None:
        if (whole and not job.lingering) or job.cancelled:
            guest.jobs.forget(job)

    job.on_news.append(finished)
    channel.on_gone = lambda: guest.jobs.cancel(job)
    target = job.input
    if target is not None:
        # Credit comes back as the process reads; what it never reads is nobody's concern.
        channel.on_data = lambda data: target.write(data, channel.grant)
        channel.on_end = target.end


def _start(guest: "Guest", channel: Channel, fields: Fields) -> None:
    job = _begin(guest.jobs, fields, with_input=True)
    if fields.get("follow"):
        guest.loop.after(READER_COMES, lambda: None if job.followed else job.let_go())
    channel.reply({"job": job.id, "pid": job.pid, "command": job.argv, "started_at": job.started_at})


def _read(guest: "Guest", channel: Channel, fields: Fields) -> None:
    Read(guest.loop, channel, guest.jobs.find(fields["job"]), fields)


def _follow(guest: "Guest", channel: Channel, fields: Fields) -> None:
    Follow(channel, guest.jobs.find(fields["job"]), int(fields.get("stdout", 0)), int(fields.get("stderr", 0)))


def _wait(guest: "Guest", channel: Channel, fields: Fields) -> None:
    job = guest.jobs.find(fields["job"])
    keep = int(fields.get("keep", KEEP))

    timer: Timer | None = None

    def settled() -> None:
        if not job.settled:
            return
        if timer is not None:
            timer.cancel()
        Result(channel, job, keep, lambda _whole: None)

    def still_running() -> None:
        if channel.open and not job.settled:
            job.on_news.remove(settled)
            channel.reply(end_facts(job))

    if job.settled:
        settled()
        return
    listen(channel, job, settled)
    if fields.get("wait") is not None:
        timer = guest.loop.after(float(fields["wait"]), still_running)


def _write(guest: "Guest", channel: Channel, fields: Fields) -> None:
    job = guest.jobs.find(fields["job"])
    if job.input is None or not job.input.accepting:
        raise _takes_no_input(job)
    target = job.input

    def closed() -> None:
        if not target.open:
            channel.fail(_takes_no_input(job))

    def end() -> None:
        job.on_news.remove(closed)
        target.end()
        channel.reply()

    def data(content: bytes) -> None:
        target.write(content, channel.grant)
        closed()

    channel.on_data = data
    channel.on_end = end
    listen(channel, job, closed)
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
    channel.reply({"jobs": [facts(job) for job in guest.jobs.by_id.values()]})


def _info(guest: "Guest", channel: Channel, fields: Fields) -> None:
    channel.reply(facts(guest.jobs.find(fields["job"])))


def _forget(guest: "Guest", channel: Channel, fields: Fields) -> None:
    job = guest.jobs.find(fields["job"])
    if not job.settled:
        raise Failure("conflict", f"job {job.id} still runs", remedy="end it first")
    guest.jobs.forget(job)
    channel.reply()


def _make_room(guest: "Guest", channel: Channel, _fields: Fields) -> None:
    channel.reply({"cleared": guest.jobs.make_room()})


def _kill_all(guest: "Guest", channel: Channel, _fields: Fields) -> None:
    guest.jobs.kill_all(guest.means.is_init)
    channel.reply()


def _begin(jobs: Jobs, fields: Fields, with_input: bool) -> Job:
    pty = fields.get("pty")
    return jobs.start(
        fields["command"],
        cwd=fields.get("cwd"),
        env=fields.get("env"),
        name=str(fields.get("name", "")),
        timeout=fields.get("timeout_sec"),
        with_input=with_input,
        pty=(int(pty[0]), int(pty[1])) if pty else None,
        patient=bool(fields.get("follow")),
    )


def _takes_no_input(job: Job) -> Failure:
    return Failure("conflict", f"job {job.id} takes no more input: it has ended, or its input was closed")


def facts(job: Job) -> dict[str, Any]:
    """What a listing shows of a job."""
    about = {
        "command": job.argv, "name": job.name, "pty": job.pty, "started_at": job.started_at,
        "timeout_sec": job.timeout,
    }  # fmt: skip
    return end_facts(job) | about


OPERATIONS: dict[str, Operation] = {
    "run": _run, "start": _start, "read": _read, "follow": _follow, "wait": _wait, "write": _write, "signal": _signal,
    "resize": _resize, "list": _list_jobs, "info": _info, "forget": _forget, "kill_all": _kill_all,
    "make_room": _make_room,
}  # fmt: skip


PIECE = 1 << 18
"""Output is sent along in pieces of at most so many bytes."""


def end_facts(job: Job) -> dict[str, Any]:
    """How a job ended, or stands now."""
    return {
        "job": job.id, "ended": job.settled, "exit_code": job.exit_code, "signal": job.signal,
        "timed_out": job.timed_out, "cancelled": job.cancelled, "lingering": job.lingering, "shared": job.shared,
        "wall": job.duration, "usage": job.usage, "stdout_total": job.out.total, "stderr_total": job.err.total,
        "dropped": job.out.dropped + job.err.dropped, "cleared": job.cleared, "pid": job.pid,
    }  # fmt: skip


def listen(channel: Channel, job: Job, listener: Callable[[], None]) -> None:
    """Tell this channel of the job's news until the channel is gone; the job does not care."""
    job.on_news.append(listener)

    def gone() -> None:
        if listener in job.on_news:
            job.on_news.remove(listener)
        channel.fail(Failure("cancelled", "the caller gave up"))

    channel.on_gone = gone


class Result:
    """Head and tail of both streams, then the facts.

    What is small goes out in one write; the rest is read from the store piece by piece as the host takes it, so that a
    large result is never in the box's memory.
    """

    __slots__ = ("_channel", "_done", "_facts", "_job", "_ranges", "_sent")

    def __init__(self, channel: Channel, job: Job, keep: int, done: Callable[[bool], None]) -> None:
        """`done` is told whether that was everything the job wrote."""
        self._channel = channel
        self._job = job
        self._done = done
        self._facts = end_facts(job)
        self._sent = 0
        self._ranges = [
            (kind, output, start, end)
            for kind, output in ((OUT, job.out), (ERR, job.err))
            for start, end in output.ends(max(0, keep))
        ]
        if sum(end - start for _, _, start, end in self._ranges) <= PIECE:
            self._finish(b"".join(self._frames()))
            return
        channel.on_gone = self._gone
        channel.on_room = self._step
        self._step()

    def _frames(self) -> Iterator[bytes]:
        while self._ranges:
            kind, data = self._next(PIECE)
            if data:
                yield HEADER.pack(len(data), kind, self._channel.number) + data

    def _next(self, limit: int) -> tuple[int, bytes]:
        """The next piece; what is lost from a range is left out."""
        kind, output, start, end = self._ranges.pop(0)
        begin, data = output.read(start, min(limit, end - start))
        data = data[: max(0, end - begin)]
        self._sent += len(data)
        if data and begin + len(data) < end:
            self._ranges.insert(0, (kind, output, begin + len(data), end))
        return kind, data

    def _step(self) -> None:
        while self._ranges:
            room = self._channel.room
            if room <= 0:
                return
            kind, data = self._next(min(room, PIECE))
            if data:
                self._channel.send(kind, data)
        self._finish(b"")

    def _finish(self, frames: bytes) -> None:
        whole = self._sent == self._job.out.total + self._job.err.total
        self._job.seen = self._job.seen or whole
        self._channel.reply(self._facts, frames)
        self._done(whole)

    def _gone(self) -> None:
        self._channel.fail(Failure("cancelled", "the caller gave up"))
        self._done(False)


class Read:
    """One read by cursor: answers when there is a byte, at the end of the job, or after `wait` seconds."""

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
        self._timer = loop.after(wait, self._give_up)
        listen(channel, job, self._look)

    def _look(self) -> None:
        output = self._job.err if self._stderr else self._job.out
        if self._job.settled or output.total > self._cursor:
            self._give_up()

    def _give_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._look in self._job.on_news:
            self._job.on_news.remove(self._look)
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
    """Sends both streams from their cursors while they grow; answers when the job has settled and all is sent."""

    __slots__ = ("_channel", "_cursors", "_job", "_reads_along")

    def __init__(self, channel: Channel, job: Job, stdout: int, stderr: int) -> None:
        self._channel = channel
        self._job = job
        self._cursors = [max(0, stdout), max(0, stderr)]
        self._reads_along = not job.followed and any(pump.reader_at is not None for pump in job.pumps)
        job.followed = job.followed or self._reads_along
        channel.on_room = self._step
        channel.on_gone = self._gone
        job.on_news.append(self._step)
        self._step()

    def _step(self) -> None:
        job, channel = self._job, self._channel
        for index, output in enumerate((job.out, job.err)):
            cursor = self._cursors[index]
            while cursor < output.total:
                room = channel.room
                if room <= 0:
                    break
                start, data = output.read(cursor, min(room, PIECE))
                if start > cursor:
                    if not channel.event({"stream": "stderr" if index else "stdout", "skipped": start - cursor}):
                        break
                    data = data[: channel.room]
                cursor = start + len(data)
                self._cursors[index] = cursor
                if data:
                    channel.send(ERR if index else OUT, data)
            if self._reads_along and index < len(job.pumps):
                pump = job.pumps[index]
                if pump.reader_at is not None:
                    pump.reader_at = cursor
                    if pump.paused:
                        pump.resume()
        if job.settled and self._cursors[0] >= job.out.total and self._cursors[1] >= job.err.total:
            self._leave()
            job.seen = True
            channel.reply(end_facts(job))

    def _leave(self) -> None:
        if self._step in self._job.on_news:
            self._job.on_news.remove(self._step)

    def _gone(self) -> None:
        self._leave()
        if self._reads_along:
            self._job.let_go()
        self._channel.fail(Failure("cancelled", "the caller gave up"))
