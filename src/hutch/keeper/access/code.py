"""The handle on a box's kernels: guarded by the lease, bounded by the box's limits, and recorded in receipts."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

from hutch.errors import HutchError
from hutch.keeper.access.files import Guard
from hutch.keeper.boxes.live import Live
from hutch.kernels.kernel import KERNEL_DIED
from hutch.kernels.table import KernelTable, check_run
from hutch.kernels.warm.templates import Templates
from hutch.model.boxes import Event
from hutch.model.code import CodePiece, CodeResult, KernelInfo
from hutch.model.receipts import Details
from hutch.policy import rights
from hutch.policy.effective import clamp_timeout
from hutch.providers.base import Instance

Announce = Callable[[Event], Awaitable[object]]


def kernels_of(live: Live, templates: Templates) -> KernelTable:
    """The kernels of a box, which all handles in this keeper share."""
    if live.kernels is None:
        live.kernels = KernelTable(templates, live.record.owner)
    return live.kernels


class KernelsHandle:
    """The `Kernels` of one handle. All handles of a box in this keeper share one table."""

    def __init__(self, box: Guard, live: Live, templates: Templates, announce: Announce) -> None:
        self._box = box
        self._live = live
        self._templates = templates
        self._announce = announce

    @property
    def _table(self) -> KernelTable:
        return kernels_of(self._live, self._templates)

    @asynccontextmanager
    async def _instance(self) -> AsyncIterator[Instance]:
        instance = await self._box.begin()
        try:
            yield instance
        except HutchError as error:
            await self._box.failed(error)
            raise
        finally:
            self._box.end()

    async def start(
        self, language: str = "python", *, cwd: str | None = None, env: dict[str, str] | None = None
    ) -> KernelInfo:
        async with self._box.operation("kernel.start", {"language": language[:40], "cwd": cwd}) as operation:
            async with self._instance() as instance:
                info = await self._table.start(instance, language, cwd or "", env or {})
            operation.note(kernel=info.id)
        return info

    async def all(self) -> tuple[KernelInfo, ...]:
        async with self._instance() as instance:
            return await self._table.all(instance)

    async def run(
        self, language: str, code: str, *, timeout: float | None = None, env: dict[str, str] | None = None,
        kernel: str = "", keep_output: int = 1 << 20,
    ) -> CodeResult:  # fmt: skip
        pieces = self.stream(language, code, timeout=timeout, env=env, kernel=kernel, keep_output=keep_output)
        result: CodeResult | None = None
        async with aclosing(pieces):
            async for piece in pieces:
                result = piece.result or result
        assert result is not None  # The last piece has it, or an error was raised.
        return result

    async def stream(
        self, language: str, code: str, *, timeout: float | None = None, env: dict[str, str] | None = None,
        kernel: str = "", keep_output: int = 1 << 20,
    ) -> AsyncGenerator[CodePiece, None]:  # fmt: skip
        check_run(code, env or {})
        wanted, clamped = clamp_timeout(timeout, self._live.record.spec.limits)
        seconds, cut = rights.cut_timeout(wanted or None, rights.current())
        notes = tuple(str(each) for each in (clamped, cut) if each)
        details: Details = {
            "language": language[:40], "kernel": kernel[:80], "command": code, "code_bytes": len(code),
            "timeout_sec": seconds,
        }  # fmt: skip
        if env:
            details["env"] = tuple(sorted(env))
        async with self._box.operation("code", details) as operation, self._instance() as instance:
            pieces = self._table.stream(
                instance, language, code, kernel_id=kernel, timeout_sec=seconds, env=env or {}, keep_output=keep_output
            )
            async with aclosing(pieces):
                async for piece in pieces:
                    if piece.result is not None:
                        result = piece.result.but(notes=(*notes, *piece.result.notes))
                        operation.note(verdict=str(result.verdict.cause), kernel=result.kernel)
                        piece = piece.but(result=result)
                        await self._count(result)
                    yield piece

    async def _count(self, result: CodeResult) -> None:
        """Count a run by its verdict, and announce the death of a kernel."""
        self._templates.counts.runs[str(result.language), str(result.verdict.cause)] += 1
        if result.error is not None and result.error.name == KERNEL_DIED:
            record = self._live.record
            await self._announce(
                Event(
                    seq=0, at=time.time(), box_id=record.id, owner=record.owner, kind="kernel", old=result.kernel,
                    reason=f"kernel {result.kernel} died: {result.verdict.message}"[:500],
                )
            )  # fmt: skip

    async def interrupt(self, kernel: str) -> None:
        async with self._box.operation("kernel.interrupt", {"kernel": kernel[:80]}), self._instance() as instance:
            await self._table.interrupt(instance, kernel)

    async def restart(self, kernel: str) -> KernelInfo:
        async with self._box.operation("kernel.restart", {"kernel": kernel[:80]}), self._instance() as instance:
            return await self._table.restart(instance, kernel)

    async def remove(self, kernel: str) -> None:
        async with self._box.operation("kernel.remove", {"kernel": kernel[:80]}), self._instance() as instance:
            await self._table.remove(instance, kernel)
