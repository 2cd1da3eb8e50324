"""One tool call in progress: its agent, its box, its progress reports and the notes for its answer."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from hutch.api import Box
from hutch.tools.agents import Agent

if TYPE_CHECKING:
    from hutch.tools.gate import Gate
    from hutch.tools.toolbox import Tools

T = TypeVar("T")

Progress = Callable[[float, float | None, str], Awaitable[None]]
"""Receives the elapsed seconds, the maximum seconds if known, and a description of the work."""

FIRST_REPORT_SECONDS = 1.0
REPORT_INTERVAL_SECONDS = 1.0

DEFAULT_MESSAGE = "now"


class Call:
    """The context that a tool's handler gets."""

    def __init__(
        self, tools: "Tools", agent: Agent, gate: "Gate", progress: Progress | None, message: str = ""
    ) -> None:
        self.tools = tools
        self.agent = agent
        self.gate = gate
        self.message = message or DEFAULT_MESSAGE
        self.notes: list[str] = []
        self._progress = progress

    def note(self, *notes: str) -> None:
        self.notes += notes

    async def box(self) -> Box:
        box, notes = await self.agent.box()
        self.note(*notes)
        await self.gate.record(box)
        return box

    async def on_box(self, work: Callable[[Box], Awaitable[T]]) -> T:
        """Run `work` in the current box. If that box is lost, run it in the next one and add a note."""

        async def recorded(box: Box) -> T:
            await self.gate.record(box)
            try:
                return await work(box)
            finally:
                await self.gate.record(box)

        result, notes = await self.agent.run_in_box(recorded)
        self.note(*notes)
        return result

    async def with_progress(self, work: Awaitable[T], what: str, total: float | None = None) -> T:
        """Await `work` and report progress meanwhile. Cancelling this call cancels the work."""
        if self._progress is None:
            return await work
        task = asyncio.ensure_future(work)
        start, wait = time.monotonic(), FIRST_REPORT_SECONDS
        try:
            while not (await asyncio.wait({task}, timeout=wait))[0]:
                wait = REPORT_INTERVAL_SECONDS
                await self._progress(time.monotonic() - start, total, what)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


def shorten(command: str | Sequence[str], width: int = 60) -> str:
    """Return a command as one short line for people."""
    text = command if isinstance(command, str) else " ".join(command)
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
