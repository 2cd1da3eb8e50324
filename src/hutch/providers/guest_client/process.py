"""`GuestProcess`: a job in a guest, by its id, and the fields of the request that starts one.

A handle holds nothing that a new handle could not get again.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from hutch.errors import Conflict, Invalid, Timeout, Unavailable
from hutch.guest.protocol import EVENT, OUT
from hutch.model.results import Chunk, JobInfo, Result
from hutch.providers.base import Command
from hutch.providers.guest_client.answers import Read, Skipped, checked
from hutch.providers.guest_client.channel import Channel
from hutch.providers.guest_client.link import Link
from hutch.providers.handles import Process

if TYPE_CHECKING:
    from hutch.providers.guest_client.instance import GuestInstance

STREAMS = ("stdout", "stderr")
ANSWER_GRACE = 30.0
"""The seconds after a requested wait before a guest without an answer counts as silent."""


class GuestProcess(Process):
    """A job's handle. Every method finds the link again, so it survives a broken connection."""

    def __init__(self, instance: "GuestInstance", job_id: str, keep: int) -> None:
        self.id = job_id
        self._instance = instance
        self._keep = keep
        self._input: Channel | None = None
        # Two writers may not interleave their pieces, nor open the channel twice.
        self._writing = asyncio.Lock()

    async def _link(self) -> Link:
        return await self._instance.link_of(self.id)

    async def info(self) -> JobInfo:
        link = await self._link()
        return await self._instance.job_info(link, await link.request("info", job=self.id))

    async def read(self, cursor: int = 0, *, stream: str = "stdout", limit: int = 65536, wait: float = 0.0) -> Chunk:
        if stream not in STREAMS:
            raise Invalid(f"a process has no stream {stream!r}", remedy="stdout or stderr")
        link = await self._link()
        channel = link.open(
            "read",
            timeout=wait + ANSWER_GRACE,
            collect=True,
            job=self.id,
            stream=stream,
            cursor=cursor,
            limit=limit,
            wait=wait,
        )
        answer = checked(await channel.answer(), Read)
        return Chunk(
            data=channel.output(STREAMS.index(stream)), cursor=answer.cursor, eof=answer.eof, dropped=answer.dropped
        )

    async def follow(self, stdout: int = 0, stderr: int = 0) -> AsyncIterator[tuple[str, bytes]]:
        cursors = {"stdout": stdout, "stderr": stderr}
        while True:
            link = await self._link()
            try:
                async with link.open(
                    "follow", job=self.id, stdout=cursors["stdout"], stderr=cursors["stderr"]
                ) as channel:
                    async for kind, content in channel:
                        if kind == EVENT:
                            skipped = checked(content, Skipped)
                            cursors[skipped.stream] += skipped.skipped
                            continue
                        stream = "stdout" if kind == OUT else "stderr"
                        cursors[stream] += len(content)
                        yield stream, content
                    return
            except Unavailable:
                if link.usable:
                    raise
                # Only the connection broke; if the guest is gone too, the next link says so.

    async def write(self, data: bytes) -> None:
        async with self._writing:
            channel = await self._open_input()
            await channel.send(data)
            if channel.done:
                self._input = None
                await channel.answer()
                raise Conflict(f"job {self.id} takes no more input")

    async def _open_input(self) -> Channel:
        if self._input is not None and not self._input.done:
            return self._input
        self._input = None
        link = await self._link()
        self._input = link.open("write", job=self.id)
        await anext(self._input)  # the first event says that the input is open; otherwise this raises the reason
        return self._input

    async def close_stdin(self) -> None:
        async with self._writing:
            try:
                channel = await self._open_input()
                channel.end()
                await channel.answer()
            except Conflict:
                return
            finally:
                self._input = None

    async def signal(self, number: int) -> None:
        link = await self._link()
        await link.request("signal", job=self.id, number=int(number))

    async def resize(self, rows: int, cols: int) -> None:
        if not (0 < rows < 1 << 16 and 0 < cols < 1 << 16):
            raise Invalid(f"a terminal of {rows} rows and {cols} columns does not exist")
        link = await self._link()
        await link.request("resize", job=self.id, rows=rows, cols=cols)

    async def wait(self, timeout_sec: float | None = None) -> Result:
        link = await self._link()
        silence = None if timeout_sec is None else timeout_sec + ANSWER_GRACE
        channel = link.open("wait", timeout=silence, collect=True, job=self.id, keep=self._keep, wait=timeout_sec)
        channel.expect(self._keep)
        answer = await channel.answer()
        if answer.get("ended") is not True:
            raise Timeout(f"job {self.id} still runs after {timeout_sec} s", op="wait")
        return await self._instance.result(link, channel, answer)


def command_fields(command: Command) -> dict[str, Any]:
    """Return the fields of the request that starts a command. Raises Invalid for a command that cannot be meant."""
    if not command.command or not (
        command.command[0] if isinstance(command.command, tuple) else command.command.strip()
    ):
        raise Invalid("the command is empty", op="run", remedy="give a shell command or a list of arguments")
    if command.timeout_sec is not None and not (0 < command.timeout_sec < math.inf):
        raise Invalid(
            f"a timeout of {command.timeout_sec} s makes no sense", remedy="give a positive number of seconds"
        )
    fields: dict[str, Any] = {"command": command.command, "keep": command.keep_output}
    if command.cwd is not None:
        fields["cwd"] = command.cwd
    if command.env:
        fields["env"] = command.env
    if command.timeout_sec is not None:
        fields["timeout_sec"] = command.timeout_sec
    if command.name:
        fields["name"] = command.name
    if command.pty:
        fields["pty"] = [command.rows, command.cols]
    return fields
