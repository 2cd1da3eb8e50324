"""The operations on jobs: run, start, read, follow, wait, write, signal, resize, list, info, forget, ending."""

from typing import TYPE_CHECKING, Any

from hutch.guest import terminal
from hutch.guest.channels import Channel, Fields, Operation
from hutch.guest.jobs import Job, Jobs
from hutch.guest.loop import Timer
from hutch.guest.path_steps import Failure
from hutch.guest.read_output import Follow, Read, Result, end_facts, listen

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
        terminal.resize(job.pumps[0].fd, int(fields["rows"]), int(fields["cols"]))
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
