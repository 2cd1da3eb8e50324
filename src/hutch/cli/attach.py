"""One command of a box, attached to this process: our input is its input, our signals are its signals."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from contextlib import aclosing, nullcontext, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from hutch.cli import stdio
from hutch.cli.connect import Attached, started
from hutch.errors import Conflict
from hutch.model.results import Result
from hutch.providers.base import Command

if TYPE_CHECKING:
    from hutch.api import Box

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Signals:
    """Forwards our signals to the command; before there is one, the first signal cancels our own task.

    The loop's own `add_signal_handler` does the same, but loads `inspect` and goes through all signals each time: 5 ms.
    """

    def __init__(self) -> None:
        self.ended_by: int | None = None
        """The signal that came before there was a command."""
        self.forwarded: set[int] = set()
        self._process: Attached | None = None
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._sending: set[asyncio.Task[None]] = set()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._before: dict[int, Any] = {}
        """What was done at each signal that we handle."""
        self._wakeup, self._writer = socket.socketpair()

    def __enter__(self) -> Self:
        self._wakeup.setblocking(False)
        self._writer.setblocking(False)
        self._loop.add_reader(self._wakeup.fileno(), self._receive)
        self._wakeup_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, and shells for their background jobs
                self._on(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        signal.set_wakeup_fd(self._wakeup_before)
        self._loop.remove_reader(self._wakeup.fileno())
        self._wakeup.close()
        self._writer.close()

    def attach(self, process: Attached) -> None:
        self._process = process

    def forward_size(self, process: Attached) -> None:
        """Give the box's terminal the size of ours whenever our window changes."""
        self._on(signal.SIGWINCH, lambda _: self._send(process.resize(*stdio.terminal_size(0))))

    def _on(self, number: int, handler: Callable[[int], None]) -> None:
        self._handlers[number] = handler
        before = signal.signal(number, _arrived)
        self._before.setdefault(number, before)

    def _receive(self) -> None:
        """Handle the signals whose numbers the interpreter has written to the socket, whichever thread they hit."""
        with suppress(BlockingIOError):
            for number in self._wakeup.recv(4096):
                if number in self._handlers:
                    self._handlers[number](number)

    def _handle(self, number: int) -> None:
        if self._process is None:
            if self.ended_by is None and self._task is not None:  # once: a second cancel would hit the cleanup
                self.ended_by = number
                self._task.cancel()
            return
        repeated = number == signal.SIGINT and number in self.forwarded
        self.forwarded.add(number)
        self._send(self._process.signal(signal.SIGKILL if repeated else number))

    def _send(self, call: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(call)
        self._sending.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        """Ignore a failed signal: a command that has ended takes none, and any other fault shows in its end."""
        self._sending.discard(task)
        if not task.cancelled():
            task.exception()


def _arrived(number: int, frame: object) -> None:
    """Do nothing: the loop reads of the signal on the socket. Without a handler there would be nothing to read."""


class Attachment:
    """What the command is connected to."""

    def __init__(self, signals: Signals, *, stdin: int | None) -> None:
        self.signals = signals
        self.stdin = stdin
        """Descriptor that the command's input is read from; None means no input."""
        self.reader_left = False
        """Set when the reader of our output is gone; the command was killed then, as SIGPIPE would have done."""

    async def run(self, box: "Box", order: Command) -> Result:
        """Start the command and stay with it to its end. With `order.follow` its output goes to ours."""
        async with started(box, order) as begun:
            process = begun.process
            feeding = asyncio.create_task(_feed(process, self.stdin))
            try:
                self.signals.attach(process)
                if order.pty and os.isatty(0):
                    self.signals.forward_size(process)
                if order.follow:
                    await self.show(process)
                begun.result = await process.wait()
            finally:
                feeding.cancel()
                with suppress(asyncio.CancelledError):
                    await feeding
        return begun.result

    async def run_on_terminal(self, box: "Box", order: Command) -> Result:
        """Run the command on a terminal of the box that is shown in ours, if we have one."""
        rows, cols = stdio.terminal_size(0)
        order = order.but(pty=True, rows=rows, cols=cols, env={"TERM": os.environ.get("TERM", "dumb"), **order.env})
        with stdio.raw_terminal(0) if os.isatty(0) else nullcontext():
            return await self.run(box, order)

    async def show(self, process: Attached, stdout: int = 0, stderr: int = 0) -> None:
        """Copy its output to ours, from these cursors to its end."""
        sinks = {"stdout": stdio.Sink(1), "stderr": stdio.Sink(2)}
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


async def _feed(process: Attached, fd: int | None) -> None:
    with suppress(Conflict):  # it has ended or closed its input: nobody reads the rest
        if fd is not None:
            async for data in stdio.read_pieces(fd):
                await process.write(data)
        await process.close_stdin()
