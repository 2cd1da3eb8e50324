"""Managed processes: jobs of a session's box that LangBot starts, watches and talks to, such as stdio MCP servers.

The box keeps them: a job's name holds the process id, so they are found again after a restart of the server.
"""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from hutch.errors import Conflict, HutchError, NotFound, Timeout
from hutch.keeper.access.handles import BoxHandle
from hutch.keeper.locks import KeyedLocks
from hutch.model.results import JobInfo, JobState
from hutch.server.handlers.websockets import NORMAL, Socket, run_until_first_ends, send_lines, write_lines
from hutch.server.langbot.messages import MOUNT_PATH, BoxFailure, ProcessSpec

PREFIX = "langbot:"
PREVIEW_CHARACTERS = 4000
STOP_SECONDS = 5.0
TERMINATE, KILL = 15, 9
MAX_KNOWN = 8192
"""Processes of which something is remembered besides what their jobs say; the oldest are forgotten first."""


class Processes:
    """Starts, finds, stops and relays the managed processes of all sessions."""

    def __init__(self) -> None:
        self._starting = KeyedLocks()
        """A lock for each process id of a box, so that two starts at once do not leave two processes."""
        self._attaching = KeyedLocks()
        """A lock for each job, because one client at a time reads its output."""
        self._details: dict[tuple[str, str], ProcessSpec] = {}
        """What a job does not say about itself: directory and names of variables. Lost with the server."""
        self._positions: dict[tuple[str, str], int] = {}
        """How far a job's output was relayed, so that the next client gets the lines that no other one got."""
        self._attached: set[tuple[str, str]] = set()

    async def start(self, box: BoxHandle, physical: str, session_id: str, spec: ProcessSpec) -> dict[str, Any]:
        """Start a process; a running one of the same id is ended first."""
        async with self._starting.lock(box.id, spec.process_id):
            with suppress(HutchError):
                await self.stop(box, physical, spec.process_id)
            job = await box.start([spec.command, *spec.args], cwd=spec.cwd, env=spec.env, name=PREFIX + spec.process_id)
            for known in (self._details, self._positions):
                while len(known) >= MAX_KNOWN:
                    del known[next(iter(known))]
            self._details[box.id, job.id] = spec
            self._positions[box.id, job.id] = 0
            return await self._describe(box, session_id, await job.info())

    async def get(self, box: BoxHandle, physical: str, session_id: str, process_id: str) -> dict[str, Any]:
        return await self._describe(box, session_id, await find(box, physical, process_id))

    async def all(self, box: BoxHandle, session_id: str) -> dict[str, dict[str, Any]]:
        """Describe every process of a session by its id; of several with one id the newest counts."""
        found = {job.name: job for job in sorted(await jobs(box), key=lambda job: job.started_at)}
        return {name.removeprefix(PREFIX): await self._describe(box, session_id, job) for name, job in found.items()}

    async def stop(self, box: BoxHandle, physical: str, process_id: str) -> None:
        """End a process: its input closes, then SIGTERM, then SIGKILL."""
        info = await find(box, physical, process_id)
        if info.state is not JobState.RUNNING:
            await box.forget(info.id)
            return
        job = await box.job(info.id)
        await job.close_stdin()
        for number in (TERMINATE, KILL):
            await job.signal(number)
            with suppress(Timeout):
                await job.wait(STOP_SECONDS)
                break
        with suppress(Conflict, NotFound):  # It still runs as a zombie's parent, or ended and was forgotten.
            await box.forget(info.id)

    async def relay(self, box: BoxHandle, physical: str, process_id: str, socket: Socket, subprotocol: str) -> None:
        """Connect a client: each frame is one line of the process's input or output.

        A client that leaves does not end the process. A second client waits until the first has left.
        """
        info = await find(box, physical, process_id)
        if info.state is not JobState.RUNNING:
            raise BoxFailure(
                "BoxManagedProcessConflictError", f"managed process {process_id} in session {physical} is not running"
            )
        key = (box.id, info.id)
        job = await box.job(info.id)
        await socket.accept(subprotocol)
        async with self._attaching.lock(*key):
            self._attached.add(key)
            # After a restart the answers to earlier clients are not repeated, because the next one begins from the
            # start.
            start = self._positions.setdefault(key, info.stdout_total)

            def relayed(position: int) -> None:
                self._positions[key] = position

            try:
                if await run_until_first_ends(send_lines(job, socket, start, relayed), write_lines(job, socket)):
                    await socket.close(NORMAL)
            finally:
                self._attached.discard(key)

    async def _describe(self, box: BoxHandle, session_id: str, job: JobInfo) -> dict[str, Any]:
        spec = self._details.get((box.id, job.id))
        return {
            "session_id": session_id,
            "process_id": job.name.removeprefix(PREFIX),
            "status": "running" if job.state is JobState.RUNNING else "exited",
            "command": job.command[0],
            "args": job.command[1:],
            "cwd": spec.cwd if spec is not None else MOUNT_PATH,
            "env_keys": sorted(spec.env) if spec is not None else [],
            "attached": (box.id, job.id) in self._attached,
            "started_at": datetime.fromtimestamp(job.started_at, UTC),
            "exited_at": _exited_at(job),
            "exit_code": _exit_code(job),
            "stderr_preview": await _preview(box, job),
        }


async def jobs(box: BoxHandle) -> list[JobInfo]:
    return [job for job in await box.jobs() if job.name.startswith(PREFIX)]


async def find(box: BoxHandle, physical: str, process_id: str) -> JobInfo:
    """Return the newest job of this process id."""
    found = [job for job in await jobs(box) if job.name == PREFIX + process_id]
    if not found:
        raise BoxFailure(
            "BoxManagedProcessNotFoundError",
            f"session {physical} has no managed process with process_id={process_id}",
        )
    return max(found, key=lambda job: job.started_at)


async def running(boxes: list[BoxHandle]) -> int:
    """Count the processes that run in these boxes."""
    listed = await asyncio.gather(*(jobs(box) for box in boxes))
    return sum(job.state is JobState.RUNNING for each in listed for job in each)


async def _preview(box: BoxHandle, job: JobInfo) -> str:
    if not job.stderr_total:
        return ""
    try:
        handle = await box.job(job.id)
        chunk = await handle.read(max(0, job.stderr_total - PREVIEW_CHARACTERS), stream="stderr")
    except NotFound:  # It was forgotten meanwhile.
        return ""
    return chunk.text[-PREVIEW_CHARACTERS:]


def _exited_at(job: JobInfo) -> datetime | None:
    if job.state is JobState.RUNNING or job.usage is None:
        return None
    return datetime.fromtimestamp(job.started_at + job.usage.wall_sec, UTC)


def _exit_code(job: JobInfo) -> int | None:
    return 128 + job.signal if job.exit_code is None and job.signal is not None else job.exit_code
