"""One command of a box, attached to this process: our input is its input, our signals are its signals."""

import asyncio
import os
import signal
from collections.abc import Coroutine
from contextlib import aclosing, nullcontext, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

from hutch.cli import streams, terminal
from hutch.errors import Conflict
from hutch.keeper.access.handles import BoxHandle, asked
from hutch.model.results import Result
from hutch.providers.base import Command, Process

if TYPE_CHECKING:
    from hutch.api import Box, Job

Attached: TypeAlias = "Process | Job"
"""A command of a box that this process keeps, or of a server's."""
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Signals:
    """Passes our signals on to the command; while there is none yet, the first one cancels our own task."""

    def __init__(self) -> None:
        self.ended_by: int | None = None
        """The signal that came before there was a command."""
        self.forwarded: set[int] = set()
        self._process: Attached | None = None
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._sending: set[asyncio.Task[None]] = set()
        self._handled: list[int] = []

    def __enter__(self) -> Self:
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, and shells for their background jobs
                self._loop.add_signal_handler(number, self._came, number)
                self._handled.append(number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in self._handled:
            self._loop.remove_signal_handler(number)

    def attach(self, process: Attached) -> None:
        self._process = process

    def watch_size(self, process: Attached) -> None:
        """The box's terminal has the size of ours, also after the window was dragged."""
        self._loop.add_signal_handler(signal.SIGWINCH, lambda: self._send(process.resize(*terminal.size(0))))
        self._handled.append(signal.SIGWINCH)

    def _came(self, number: int) -> None:
        if self._process is None:
            if self.ended_by is None and self._task is not None:  # once: a second cancel would hit the cleaning up
                self.ended_by = number
                self._task.cancel()
            return
        impatient = number == signal.SIGINT and number in self.forwarded
        self.forwarded.add(number)
        self._send(self._process.signal(signal.SIGKILL if impatient else number))

    def _send(self, call: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(call)
        self._sending.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        """A command that has ended takes no signal; whatever else went wrong, the command's own end tells."""
        self._sending.discard(task)
        if not task.cancelled():
            task.exception()


class Attachment:
    """What the command is connected to."""

    def __init__(self, signals: Signals, *, stdin: int | None) -> None:
        self.signals = signals
        self.stdin = stdin
        """Descriptor to feed it from; None: it has no input."""
        self.reader_left = False
        """Whoever read our output has gone; the command was killed, as SIGPIPE would have done."""

    async def run(self, box: "Box", order: Command) -> Result:
        """Start it, and stay with it to its end. With `order.follow` its output goes to ours."""
        if not isinstance(box, BoxHandle):
            return await self._stay(await _started(box, order), order)
        async with box.operation("exec", asked(order)) as operation:
            instance = await box.begin()
            try:
                operation.result = await self._stay(await instance.start(order), order)
            finally:
                box.end()
        return operation.result

    async def _stay(self, process: Attached, order: Command) -> Result:
        feeding = asyncio.create_task(_feed(process, self.stdin))
        try:
            self.signals.attach(process)
            if order.pty and os.isatty(0):
                self.signals.watch_size(process)
            if order.follow:
                await self.show(process)
            return await process.wait()
        finally:
            feeding.cancel()
            with suppress(asyncio.CancelledError):
                await feeding

    async def run_on_terminal(self, box: "Box", order: Command) -> Result:
        """The same with a terminal of the box, shown in ours, if we have one."""
        rows, cols = terminal.size(0)
        order = order.but(pty=True, rows=rows, cols=cols, env={"TERM": os.environ.get("TERM", "dumb"), **order.env})
        with terminal.raw(0) if os.isatty(0) else nullcontext():
            return await self.run(box, order)

    async def show(self, process: Attached, stdout: int = 0, stderr: int = 0) -> None:
        """What it writes, from these cursors to its end."""
        sinks = {"stdout": streams.Sink(1), "stderr": streams.Sink(2)}
        try:
            async with aclosing(process.follow(stdout, stderr)) as output:  # type: ignore[type-var]
                async for stream, data in output:
                    await sinks[stream].write(data)
        except BrokenPipeError:
            self.reader_left = True
            await process.signal(signal.SIGKILL)
        finally:
            for sink in sinks.values():
                sink.close()


async def _started(box: "Box", order: Command) -> "Job":
    return await box.start(
        order.command, cwd=order.cwd, env=order.env, timeout=order.timeout_sec, user=order.user, pty=order.pty,
        rows=order.rows, cols=order.cols, name=order.name, follow=order.follow,
    )  # fmt: skip


async def _feed(process: Attached, fd: int | None) -> None:
    with suppress(Conflict):  # it has ended or closed its input: the rest of ours is nobody's
        if fd is not None:
            async for data in streams.pieces(fd):
                await process.write(data)
        await process.close_stdin()
