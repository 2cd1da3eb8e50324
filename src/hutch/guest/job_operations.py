"""The job operations of the guest: run, start, read, follow, wait, write, signal, resize, list, forget, kill_all."""

from typing import Any

from hutch.guest import terminal
from hutch.guest.channels import Channel, Fields, Operation
from hutch.guest.jobs import Job, Jobs
from hutch.guest.loop import Loop
from hutch.guest.steps import Failure

PIECE = 1 << 18
"""Output is sent along in pieces of at most so many bytes."""


def operations(loop: Loop, jobs: Jobs, is_init: bool) -> dict[str, Operation]:
    def run(channel: Channel, fields: Fields) -> None:
        job = _start(jobs, fields, with_input=bool(fields.get("stdin")))
        keep = int(fields.get("keep", 1 << 20))

        def finished() -> None:
            if job.settled:
                whole = _send_result(channel, job, keep)
                if whole and not job.lingering:
                    jobs.forget(job)

        job.on_news.append(finished)
        channel.on_gone = lambda: jobs.cancel(job)
        if job.input is not None:
            _feed(channel, job)

    def start(channel: Channel, fields: Fields) -> None:
        job = _start(jobs, fields, with_input=True)
        if job.pumps[0].reader_at is not None:
            _wait_for_reader(loop, job)
        channel.reply({"job": job.id, "pid": job.pid, "started_at": job.started_at})

    def read(channel: Channel, fields: Fields) -> None:
        job = jobs.find(fields["job"])
        _Read(loop, channel, job, fields)

    def follow(channel: Channel, fields: Fields) -> None:
        _Follow(channel, jobs.find(fields["job"]), int(fields.get("stdout", 0)), int(fields.get("stderr", 0)))

    def wait(channel: Channel, fields: Fields) -> None:
        job = jobs.find(fields["job"])
        keep = int(fields.get("keep", 1 << 20))

        def settled() -> None:
            if job.settled:
                _send_result(channel, job, keep)

        if job.settled:
            settled()
            return
        _listen(channel, job, settled)

    def write(channel: Channel, fields: Fields) -> None:
        job = jobs.find(fields["job"])
        if job.input is None or not job.input.accepting:
            raise Failure("conflict", f"job {job.id} takes no more input: it has ended, or its input was closed")
        _feed(channel, job)

        def closed() -> None:
            if job.input is not None and not job.input.open:
                channel.fail(Failure("conflict", f"job {job.id} takes no more input: it has ended, or closed its end"))

        _listen(channel, job, closed)
        channel.event({"open": True})

    def signal(channel: Channel, fields: Fields) -> None:
        jobs.signal(jobs.find(fields["job"]), int(fields["number"]))
        channel.reply()

    def resize(channel: Channel, fields: Fields) -> None:
        job = jobs.find(fields["job"])
        if job.pty < 0:
            raise Failure("unsupported", f"job {job.id} has no terminal")
        if job.input is not None and job.input.open:
            terminal.resize(job.pty, int(fields["rows"]), int(fields["cols"]))
        channel.reply()

    def list_jobs(channel: Channel, _fields: Fields) -> None:
        channel.reply({"jobs": [facts(job) for job in jobs.by_id.values()]})

    def info(channel: Channel, fields: Fields) -> None:
        channel.reply(facts(jobs.find(fields["job"])))

    def forget(channel: Channel, fields: Fields) -> None:
        job = jobs.find(fields["job"])
        if not job.settled:
            raise Failure("conflict", f"job {job.id} still runs", remedy="end it first")
        jobs.forget(job)
        channel.reply()

    def kill_all(channel: Channel, _fields: Fields) -> None:
        jobs.kill_all(is_init)
        channel.reply()

    return {
        "run": run, "start": start, "read": read, "follow": follow, "wait": wait, "write": write, "signal": signal,
        "resize": resize, "list": list_jobs, "info": info, "forget": forget, "kill_all": kill_all,
    }  # fmt: skip


def _start(jobs: Jobs, fields: Fields, with_input: bool) -> Job:
    pty = fields.get("pty")
    return jobs.start(
        fields["command"],
        cwd=fields.get("cwd"),
        env=fields.get("env"),
        name=str(fields.get("name", "")),
        timeout=fields.get("timeout"),
        with_input=with_input,
        pty=(int(pty[0]), int(pty[1])) if pty else None,
        patient=bool(fields.get("follow")),
    )


def facts(job: Job) -> dict[str, Any]:
    """What the host is told of a job, running or ended."""
    return {
        "job": job.id, "command": job.argv, "name": job.name, "pid": job.pid, "pty": job.pty >= 0,
        "started_at": job.started_at, "ended": job.settled, "exit_code": job.exit_code, "signal": job.signal,
        "timed_out": job.timed_out, "cancelled": job.cancelled, "lingering": job.lingering, "shared": job.shared,
        "wall": job.duration, "usage": job.usage, "stdout_total": job.out.total, "stderr_total": job.err.total,
        "dropped": job.out.dropped + job.err.dropped,
    }  # fmt: skip


def end_facts(job: Job) -> dict[str, Any]:
    """The same of an ended job, without what the caller knows already."""
    return {
        "job": job.id, "exit_code": job.exit_code, "signal": job.signal, "timed_out": job.timed_out,
        "cancelled": job.cancelled, "lingering": job.lingering, "shared": job.shared, "wall": job.duration,
        "usage": job.usage, "stdout_total": job.out.total, "stderr_total": job.err.total,
        "dropped": job.out.dropped + job.err.dropped,
    }  # fmt: skip
