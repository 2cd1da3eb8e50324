"""`GuestInstance`: the provider contract over links, for every engine that can place a guest.

The engine gives a way to connect, its counters (`CounterSource`), and optionally a way to a second guest that runs as
another user. It overrides what only an engine can do: pause, resume, limits.
"""

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from hutch.errors import BoxBroken, EngineError, NotFound, NotRunnable, Timeout, Unavailable, Unsupported
from hutch.model.limits import Limits
from hutch.model.results import Cause, JobInfo, JobState, Result, Usage, Verdict
from hutch.model.spec import EffectiveSpec
from hutch.providers.base import Command, Instance, InstanceRecord
from hutch.providers.guest_client.accounts import Account, find_account
from hutch.providers.guest_client.answers import About, Cleared, CpuTime, Started, checked
from hutch.providers.guest_client.channel import Channel
from hutch.providers.guest_client.files import GuestFiles
from hutch.providers.guest_client.link import Link
from hutch.providers.guest_client.process import GuestProcess, command_fields
from hutch.providers.guest_client.trees import max_copy_bytes
from hutch.providers.guest_client.verdicts import (
    Counters,
    CounterSource,
    End,
    Room,
    cannot_start,
    decide,
    exit_code,
    megabytes,
    remedy_for,
    shows_refused_fork,
    usage_of,
)

if TYPE_CHECKING:
    from hutch.api import Files
    from hutch.model.boxes import PortInfo
    from hutch.providers.guest_client.ports import GuestPortStream

ANSWER_GRACE = 15.0
"""The seconds after a command's timeout, which the guest enforces, before a guest without an answer is silent."""
PREFIX = 7
"""The length of a job id's prefix: six characters of its guest's boot and a dash."""
REMEMBERED = 4096


class _Seen:
    """The facts about a job that the host knows and its guest does not."""

    __slots__ = ("before", "timeout_sec", "verdict")

    def __init__(self, before: Counters | None, timeout_sec: float | None) -> None:
        self.before = before
        self.timeout_sec = timeout_sec
        self.verdict: Verdict | None = None


class GuestInstance(Instance):
    """A live box whose guest can be reached."""

    def __init__(
        self,
        record: InstanceRecord,
        spec: EffectiveSpec,
        connect: Callable[[], Awaitable[Link]],
        facts: CounterSource,
        *,
        guest_user: str = "user",
        root_guest: Callable[[str], Awaitable[Link]] | None = None,
    ) -> None:
        self.record = record
        self.spec = spec
        self.limits = spec.limits
        self._connect = connect
        self._facts = facts
        self._guest_user = guest_user
        self._root_guest = root_guest
        self._links: dict[str, Link] = {}
        self._other_guests: dict[str, Callable[[], Awaitable[Link]]] = {}
        """How further guests of the box, which serve nobody's commands, are reached, by their names."""
        self._accounts: dict[str, Account] = {}
        """The accounts that commands have named so far, which are looked up once."""
        # Each user gets one connection, however many callers find it broken at once.
        self._connecting = asyncio.Lock()
        self._seen: dict[str, _Seen] = {}
        self._untouched: Counters | None = None
        """The counters of a box in which nothing has run yet, which the engine knows without reading them."""
        self._files = GuestFiles(self.link, self.copy_limit)

    @property
    def files(self) -> "Files":
        return self._files

    def files_as(self, user: str) -> "Files":
        return GuestFiles(lambda: self.link(user), self.copy_limit)

    def copy_limit(self, source: str) -> int:
        """Return the most bytes that a copy of this path may bring to the host."""
        return max_copy_bytes(self.spec.but(limits=self.limits), source)

    # --- links -----------------------------------------------------------------------------------------------

    async def link(self, user: str | None = None) -> Link:
        """Return the link to this user's guest (None: the box's own guest), connecting again if it broke."""
        user = user or self._guest_user
        link = self._links.get(user)
        if link is not None and link.usable:
            return link
        if user in self._other_guests:
            self._links[user] = self._check_identity(await self._other_guests[user]())
            return self._links[user]
        if user not in (self._guest_user, "root") and not user.isdecimal():
            if user not in self._accounts:
                self._accounts[user] = await find_account(self._files, user)
            return await self.link(self._accounts[user].uid)
        async with self._connecting:
            link = self._links.get(user)
            if link is None or not link.usable:
                link = self._links[user] = await self._connect_again(user)
            return link

    async def meet(self, link: Link) -> None:
        """Take a link that the engine made as the one to the box's own guest, once that has said hello."""
        await link.wait_for_hello()
        self._links[self._guest_user] = self._check_identity(link)

    def _check_identity(self, link: Link) -> Link:
        if link.hello.get("box_id") != self.record.box_id:
            link.close()
            raise BoxBroken(f"another box answers in place of {self.record.box_id}")
        return link

    async def _connect_again(self, user: str) -> Link:
        try:
            try:
                link = await self._connect_as(user)
            except Unavailable as error:
                if error.details.get("errno") != errno.ECONNRESET:
                    raise
                # A dying guest closes its connections before its listening socket, and we connected in between.
                link = await self._connect_as(user)
        except Unavailable as error:
            if error.details.get("errno") in (errno.ECONNREFUSED, errno.ENOENT):
                raise BoxBroken(f"box {self.record.box_id} is dead: its guest has ended") from error
            raise
        return self._check_identity(link)

    async def _connect_as(self, user: str) -> Link:
        if user == self._guest_user:
            return await self._connect()
        if self._root_guest is not None:
            return await self._connect_root_guest(self._root_guest, user)
        raise Unsupported(
            f"commands of this box run as {self._guest_user!r} only, not as {user!r}", remedy="leave out user"
        )

    async def _connect_root_guest(self, root_guest: Callable[[str], Awaitable[Link]], user: str) -> Link:
        try:
            return await root_guest(user)
        except EngineError as error:
            if error.details.get("errno") != "EAGAIN" or not await self._make_room():
                raise
        return await root_guest(user)

    async def _make_room(self, but: Link | None = None) -> int:
        """Have each guest kill what ended commands left behind, which it cannot do for another user."""
        links = [link for link in self._links.values() if link.usable and link is not but]
        return sum([checked(await link.request("make_room"), Cleared).cleared for link in links])

    async def link_of(self, job_id: str) -> Link:
        """Return the link to the guest that has this job."""
        await self.link()
        for user, link in tuple(self._links.items()):
            if job_id.startswith(f"{str(link.hello.get('boot'))[: PREFIX - 1]}-"):
                return await self.link(user)
        raise NotFound(f"there is no job {job_id!r} in box {self.record.box_id}")

    # --- commands --------------------------------------------------------------------------------------------

    async def run(self, command: Command) -> Result:
        fields = command_fields(command)
        link = await self._link_for(command, fields)
        try:
            return await self._run(link, command, fields)
        except NotRunnable as error:
            if not _no_process_left(error):
                raise
        try:
            if cleared := await self._make_room(but=link):
                result = await self._run(link, command, fields)
                return result.but(notes=(*result.notes, *_notes(cleared)))
        except NotRunnable as error:
            if not _no_process_left(error):
                raise
        return Result(job_id="", exit_code=None, verdict=cannot_start(self.limits, self._facts.read(), shared=False))

    async def _run(self, link: Link, command: Command, fields: dict[str, Any]) -> Result:
        before = self._before()
        silence = None if command.timeout_sec is None else command.timeout_sec + ANSWER_GRACE
        channel = link.open("run", timeout=silence, collect=True, stdin=command.stdin is not None, **fields)
        channel.expect(command.keep_output)
        self._prepare_result()
        try:
            if command.stdin is not None:
                await channel.send(command.stdin)
                channel.end()
            answer = await channel.answer()
        except Timeout as error:
            raise Unavailable(f"the guest of box {self.record.box_id} does not answer", op="run") from error
        except Unavailable as error:
            if link.usable:
                raise
            await self.link()  # this raises BoxBroken if the guest is gone
            raise Unavailable("the connection broke while the command ran, and it was ended", op="run") from error
        except asyncio.CancelledError:
            channel.abandon()
            raise
        return await self.result(link, channel, answer, _Seen(before, command.timeout_sec))

    def _before(self) -> Counters:
        before, self._untouched = self._untouched or self._facts.read(), None
        return before

    def _prepare_result(self) -> None:
        """Prepare, while the guest works on a command, whatever makes its result ready sooner."""

    async def start(self, command: Command) -> GuestProcess:
        fields = command_fields(command)
        if command.follow:
            fields["follow"] = True
        if not command.open_stdin:
            fields["stdin"] = False
        link = await self._link_for(command, fields)
        before = self._before()
        try:
            answer = await link.request("start", **fields)
        except NotRunnable as error:
            if not _no_process_left(error):
                raise
            error.remedy = "raise limits.pids, or end background processes"
            if not await self._make_room(but=link):
                raise
            answer = await link.request("start", **fields)
        started = checked(answer, Started)
        self._remember(started.job, _Seen(before, command.timeout_sec))
        process = GuestProcess(self, started.job, command.keep_output)
        process.pid = started.pid
        if command.stdin is not None:
            await process.write(command.stdin)
            await process.close_stdin()
        return process

    def started_kernel(self, answer: dict[str, Any]) -> GuestProcess:
        """Return the job that a kernel guest says it has started."""
        job = checked(answer, Started).job
        self._remember(job, _Seen(self._before(), None))
        return GuestProcess(self, job, 1 << 20)

    async def _link_for(self, command: Command, fields: dict[str, Any]) -> Link:
        """Return the link to the guest of the command's user, and add the variables of a named account."""
        user = command.user or self.spec.user
        link = await self.link(user)
        if account := self._accounts.get(user):
            fields["env"] = {**account.env, **command.env}
        return link

    # --- their results -------------------------------------------------------------------------------------

    async def result(self, link: Link, channel: Channel, answer: dict[str, Any], seen: _Seen | None = None) -> Result:
        """Return the answer to `run` or `wait` as a result with its verdict."""
        end = checked(answer, End)
        after = self._facts.read()
        stdout, stderr = channel.output(0), channel.output(1)
        fork_refused = bool(end.exit_code) and (shows_refused_fork(stderr) or shows_refused_fork(stdout))
        verdict = await self._verdict(link, end, seen or self._seen.get(end.job), after, fork_refused)
        if verdict.cause is Cause.EXIT and (remedy := remedy_for(stdout, stderr, self.spec, self._user_of(link))):
            verdict = verdict.but(remedy=remedy)
        return Result(
            job_id=end.job, exit_code=exit_code(end), signal=end.signal, stdout_bytes=stdout, stderr_bytes=stderr,
            stdout_total=end.stdout_total, stderr_total=end.stderr_total,
            stdout_truncated=len(stdout) < end.stdout_total, stderr_truncated=len(stderr) < end.stderr_total,
            lingering=end.lingering, verdict=verdict, usage=usage_of(end, after), notes=_notes(end.cleared),
        )  # fmt: skip

    def _user_of(self, link: Link) -> str:
        return next((user for user, each in self._links.items() if each is link), self._guest_user)

    async def _verdict(
        self, link: Link, end: End, seen: _Seen | None, after: Counters, fork_refused: bool
    ) -> Verdict:  # fmt: skip
        """Return the job's verdict, decided once: counters go on, and a later check would blame this job for them."""
        if end.exit_code == 0 and not end.dropped:
            return Verdict(cause=Cause.OK)
        seen = seen or _Seen(None, None)
        if seen.verdict is not None:
            return seen.verdict
        room = await self._room(link, end.pid, counted=after.pids_hits is not None) if end.exit_code else None
        verdict = decide(
            end, before=seen.before, after=after, limits=self.limits, timeout_sec=seen.timeout_sec, room=room,
            fork_refused=fork_refused, trouble=self.trouble(),
        )  # fmt: skip
        seen.verdict = verdict
        self._remember(end.job, seen)
        return verdict

    async def _room(self, link: Link, since: int, *, counted: bool) -> Room | None:
        try:
            return checked(await link.request("space", timeout=5.0, tasks=not counted, since=since), Room)
        except (Unavailable, Timeout):
            return None  # the command has its result; only the reason "disk" stays unknown

    def _remember(self, job_id: str, seen: _Seen) -> None:
        self._seen[job_id] = seen
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]

    async def job_info(self, link: Link, answer: dict[str, Any]) -> JobInfo:
        end, about = checked(answer, End), checked(answer, About)
        after = self._facts.read()
        return JobInfo(
            id=end.job,
            command=tuple(about.command),
            state=JobState.EXITED if end.ended else JobState.RUNNING,
            pid=about.pid,
            started_at=about.started_at,
            name=about.name,
            exit_code=exit_code(end) if end.ended else None,
            signal=end.signal if end.ended else None,
            pty=about.pty,
            timeout_sec=about.timeout_sec,
            stdout_total=end.stdout_total,
            stderr_total=end.stderr_total,
            dropped=end.dropped,
            verdict=await self._verdict(link, end, self._seen.get(end.job), after, fork_refused=False)
            if end.ended
            else None,
            usage=usage_of(end, after) if end.ended else None,
        )

    async def jobs(self) -> tuple[JobInfo, ...]:
        await self.link()
        found = []
        for link in tuple(self._links.values()):
            if link.usable:
                answer = await link.request("list")
                found += [await self.job_info(link, job) for job in checked(answer.get("jobs"), list[dict[str, Any]])]
        return tuple(sorted(found, key=lambda job: job.started_at))

    async def job(self, job_id: str) -> GuestProcess:
        link = await self.link_of(job_id)
        await link.request("info", job=job_id)
        return GuestProcess(self, job_id, 1 << 20)

    async def forget(self, job_id: str) -> None:
        link = await self.link_of(job_id)
        await link.request("forget", job=job_id)
        self._seen.pop(job_id, None)

    # --- ports (imported where they are used, because most boxes only run commands) --------------------------

    async def connect(self, port: int) -> "GuestPortStream":
        from hutch.providers.guest_client.ports import GuestPortStream

        return await GuestPortStream.open(await self.link(), port)

    async def ports(self) -> tuple["PortInfo", ...]:
        from hutch.providers.guest_client.ports import listening_ports

        return listening_ports(await (await self.link()).request("ports"))

    async def watch_ports(self) -> AsyncIterator[tuple["PortInfo", ...]]:
        from hutch.providers.guest_client.ports import listening_ports

        async with (await self.link()).open("watch_ports") as channel:
            async for _, fields in channel:
                yield listening_ports(fields)

    # --- the box ---------------------------------------------------------------------------------------------

    async def check(self) -> None:
        link = await self.link()
        try:
            await link.request("ping", timeout=10.0)
        except Timeout as error:
            raise Unavailable(f"the guest of box {self.record.box_id} does not answer", op="check") from error
        except Unavailable:
            if link.usable:
                raise
            # The connection broke. A live guest answers on a new one; if it is gone, this raises BoxBroken.
            await (await self.link()).request("ping", timeout=10.0)

    async def kill_all(self) -> None:
        """End every process of the box but its guest."""
        await (await self.link()).request("kill_all")

    async def reboot(self) -> None:
        await self.kill_all()

    async def set_clocks(self, *, orphan_grace_sec: float | None = None, ttl_sec: float | None = None) -> None:
        await self._clock(orphan_grace=orphan_grace_sec, ttl=ttl_sec)

    async def let_jobs_keep_box(self) -> None:
        await self._clock(works_alone=True)

    async def _clock(self, **fields: float | bool | None) -> None:
        link = await self.link()
        try:
            await link.request("clock", timeout=10.0, **fields)
        except Timeout as error:
            raise Unavailable(f"the guest of box {self.record.box_id} does not answer", op="clock") from error

    async def usage(self) -> Usage:
        link = await self.link()
        spent = checked(await link.request("usage", timeout=5.0), CpuTime)
        return Usage(
            cpu_user_sec=spent.cpu_user_sec,
            cpu_system_sec=spent.cpu_system_sec,
            box_memory_peak_mb=megabytes(self._facts.read().memory_peak_bytes),
        )

    async def pause(self) -> None:
        raise Unsupported(f"provider {self.record.provider} cannot pause a box")

    async def resume(self) -> None:
        raise Unsupported(f"provider {self.record.provider} cannot pause a box")

    async def change_limits(self, limits: Limits) -> tuple[str, ...]:
        """Change the timeouts, which are ours. Without the engine no other limit of a live box can change."""
        old = self.limits
        self.limits = old.but(timeout_sec=limits.timeout_sec, max_timeout_sec=limits.max_timeout_sec)
        return tuple(
            name
            for name in ("cpus", "memory_mb", "pids", "disk_mb", "open_files")
            if getattr(old, name) != getattr(limits, name)
        )

    async def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()


def _no_process_left(error: NotRunnable) -> bool:
    return error.details.get("errno") == "EAGAIN"


def _notes(cleared: int) -> tuple[str, ...]:
    if not cleared:
        return ()
    what = "process" if cleared == 1 else "processes"
    return (f"{cleared} {what} left behind by earlier commands had to be killed to make room for this one",)
