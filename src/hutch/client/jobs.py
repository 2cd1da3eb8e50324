"""Jobs of a remote box. Output is read by cursor, so a lost connection loses no byte."""

import asyncio
import struct
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from hutch.client.handle import Handle
from hutch.client.transport.http import ConnectionBroken, Response
from hutch.client.transport.requests import BYTES, Repeat, decode_answer
from hutch.errors import HutchError, Invalid, Timeout, Unavailable
from hutch.model.layers import Attempt, Diff
from hutch.model.results import Chunk, JobInfo, Result, Usage, Verdict

FRAME = struct.Struct(">BI")
"""Header of a frame of a followed job: kind, and length of the content."""
STDOUT, STDERR, SKIPPED_OUT, SKIPPED_ERR, ERROR = 1, 2, 5, 6, 4
STREAMS = {STDOUT: "stdout", STDERR: "stderr", SKIPPED_OUT: "stdout", SKIPPED_ERR: "stderr"}
MAX_READ = 16 << 20
MAX_WAIT = 600.0
"""Longest wait of one request. After it the request is sent again."""


class RemoteJob:
    """The `Job` protocol over HTTP."""

    def __init__(self, handle: Handle, job_id: str) -> None:
        self.id = job_id
        self._handle = handle
        self._path = f"/jobs/{job_id}"
        self._cursors = {"stdout": 0, "stderr": 0}

    async def info(self) -> JobInfo:
        return await self._handle.ask(JobInfo, "GET", self._path)

    async def read(
        self, cursor: int | None = None, *, stream: str = "stdout", limit: int = 65536, wait: float = 0.0
    ) -> Chunk:
        if stream not in self._cursors:
            raise Invalid(f"a job has no stream {stream!r}", op="read", remedy="stdout or stderr")
        start = self._cursors[stream] if cursor is None else cursor
        data, answer = await self._handle.get(
            f"{self._path}/output", accept=BYTES, stream=stream,
            cursor=start, limit=min(limit, MAX_READ), wait=min(wait, MAX_WAIT) or None,
        )  # fmt: skip
        chunk = Chunk(
            data=data, cursor=int(answer["hutch-cursor"]), eof=answer["hutch-eof"] == "true",
            dropped=int(answer["hutch-dropped"]),
        )  # fmt: skip
        self._cursors[stream] = chunk.cursor
        return chunk

    async def follow(self, stdout: int = 0, stderr: int = 0) -> AsyncIterator[tuple[str, bytes]]:
        cursors: dict[str, Any] = {"stdout": stdout, "stderr": stderr}
        while True:
            try:
                async with self._handle.stream("GET", f"{self._path}/follow", accept=BYTES, **cursors) as response:
                    async for kind, data in _frames(response):
                        if kind == ERROR:
                            raise HutchError.of(decode_answer(data, dict[str, Any]))
                        if kind in (SKIPPED_OUT, SKIPPED_ERR):
                            cursors[STREAMS[kind]] += int(data)
                            continue
                        cursors[STREAMS[kind]] += len(data)
                        yield STREAMS[kind], data
                return
            except ConnectionBroken as broken:
                await self._handle.recover(broken)
            except Unavailable as error:
                if not error.details.get("draining"):
                    raise
                await asyncio.sleep(error.retry_after or 1.0)

    async def write(self, data: bytes | str) -> None:
        self._handle.refuse_if_observing("write")
        content = data.encode() if isinstance(data, str) else bytes(data)
        await self._handle.ask(
            type(None), "POST", f"{self._path}/stdin", content=content, repeat=Repeat.UNSENT
        )  # fmt: skip

    async def close_stdin(self) -> None:
        self._handle.refuse_if_observing("close_stdin")
        await self._handle.ask(type(None), "POST", f"{self._path}/stdin", content=b"", close=True)

    async def signal(self, number: int = 15) -> None:
        self._handle.refuse_if_observing("signal")
        body = {"number": int(number)}
        await self._handle.ask(type(None), "POST", f"{self._path}/signal", body=body, repeat=Repeat.UNSENT)

    async def resize(self, rows: int, cols: int) -> None:
        self._handle.refuse_if_observing("resize")
        await self._handle.ask(type(None), "POST", f"{self._path}/resize", body={"rows": rows, "cols": cols})

    async def wait(self, timeout_sec: float | None = None) -> Result:
        left = timeout_sec
        while True:
            asked = MAX_WAIT if left is None else min(left, MAX_WAIT)
            try:
                answer = await self._handle.ask(WireResult, "POST", f"{self._path}/wait", body={"timeout_sec": asked})
                return answer.result()
            except Timeout:
                if left is not None:
                    left -= asked
                    if left <= 0:
                        raise


class WireResult(msgspec.Struct, frozen=True, kw_only=True):
    """A result as the server sends it: text, and base64 as well where text would lose bytes."""

    job_id: str
    exit_code: int | None
    signal: int | None
    stdout: str
    stderr: str
    stdout_base64: bytes | None = None
    stderr_base64: bytes | None = None
    stdout_total: int
    stderr_total: int
    stdout_truncated: bool
    stderr_truncated: bool
    lingering: bool
    verdict: Verdict
    usage: Usage
    notes: tuple[str, ...]

    def result(self, notes: tuple[str, ...] = ()) -> Result:
        return Result(
            job_id=self.job_id, exit_code=self.exit_code, signal=self.signal,
            stdout_bytes=self.stdout.encode() if self.stdout_base64 is None else self.stdout_base64,
            stderr_bytes=self.stderr.encode() if self.stderr_base64 is None else self.stderr_base64,
            stdout_total=self.stdout_total, stderr_total=self.stderr_total, stdout_truncated=self.stdout_truncated,
            stderr_truncated=self.stderr_truncated, lingering=self.lingering, verdict=self.verdict, usage=self.usage,
            notes=(*notes, *self.notes),
        )  # fmt: skip


class WireAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt as the server sends it."""

    result: WireResult
    kept: bool
    diff: Diff
    checkpoint: str

    def attempt(self) -> Attempt:
        return Attempt(result=self.result.result(), kept=self.kept, diff=self.diff, checkpoint=self.checkpoint)


class RemoteStream:
    """Output of a command while it runs. The job behind it is removed at the end, and leaving early kills it."""

    def __init__(self, handle: Handle, body: Mapping[str, object]) -> None:
        self._handle = handle
        self._body = body
        self._result: Result | None = None

    @property
    def result(self) -> Result:
        if self._result is None:
            raise Invalid("the command has not ended: iterate to the end first", op="stream")
        return self._result

    async def __aiter__(self) -> AsyncIterator[tuple[str, bytes]]:
        job, notes = await start_job(self._handle, self._body)
        ended = False
        try:
            pieces = job.follow()
            try:
                async for piece in pieces:
                    yield piece
            finally:
                await pieces.aclose()  # type: ignore[attr-defined]
            result = await job.wait()
            self._result = result.but(notes=(*notes, *result.notes))
            ended = True
        finally:
            await asyncio.shield(_remove_job(self._handle, job, ended=ended))


async def start_job(handle: Handle, body: Mapping[str, object]) -> tuple[RemoteJob, tuple[str, ...]]:
    """Start a job. Return it with notes for the caller."""
    data, headers = await handle.run_once("/jobs", body)
    notes = decode_answer(headers.get("hutch-notes", "[]"), tuple[str, ...])
    return RemoteJob(handle, decode_answer(data, JobInfo).id), notes


async def _remove_job(handle: Handle, job: RemoteJob, *, ended: bool) -> None:
    if not ended:
        await job.signal(9)
        await job.wait()
    await handle.ask(type(None), "DELETE", f"/jobs/{job.id}", repeat=Repeat.UNSENT)


async def _frames(response: Response) -> AsyncIterator[tuple[int, bytes]]:
    """Parse frames. Each content is joined only once from the pieces in which it arrived."""
    parts: list[memoryview] = []
    kind, missing = 0, FRAME.size  # kind 0: the head of the next frame
    async for piece in response.pieces():
        rest = memoryview(piece)
        while rest:
            part, rest = rest[:missing], rest[missing:]
            parts.append(part)
            missing -= len(part)
            if missing:
                continue
            whole = b"".join(parts)
            parts.clear()
            if not kind:
                kind, missing = FRAME.unpack(whole)
                if missing:
                    continue
                whole = b""
            yield kind, whole
            kind, missing = 0, FRAME.size
