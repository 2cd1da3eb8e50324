"""One kernel of one box: its process, the run that goes on in it, and how each run ends."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from signal import SIGINT, SIGKILL

import msgspec

from hutch.errors import Conflict, HutchError, NotFound, NotRunnable, Timeout, Unavailable
from hutch.kernels.bash import BashOutput, run_script
from hutch.kernels.collected import Collected
from hutch.kernels.messages import Done, Lines, Message, Printed, Ready, Shown
from hutch.kernels.programs.start import program
from hutch.model.code import CodeError, CodePiece, CodeResult, Display, KernelInfo, KernelState, Language
from hutch.model.results import Cause, Result, Verdict
from hutch.providers.base import Command, Instance
from hutch.providers.handles import Process

START_SECONDS = 120.0
"""A cold start loads a large library on a busy machine; a kernel that needs longer is taken for dead."""
INTERRUPT_SECONDS = 5.0
"""How long interrupted code may take to end before its kernel is killed."""
KERNEL_DIED = "KernelDied"
"""The name of the error of code whose interpreter has ended."""
WAKE = b'{"op":"wake"}\n'
"""What a copied kernel waits for at its new input."""
_AHEAD = 64
"""Messages that are read before the caller has taken the earlier ones; then the kernel waits."""


WarmStart = Callable[[Instance, Command], Awaitable[tuple[Process, tuple[str, ...]] | None]]
"""Starts a Python kernel from a prepared interpreter, with notes for the caller; None if it has to start cold."""


class Ended(msgspec.Struct):
    """The kernel's process has ended."""

    result: Result


class Kernel:
    """An interpreter that runs one piece of code at a time and keeps its state."""

    def __init__(
        self, kernel_id: str, language: Language, cwd: str, env: Mapping[str, str], warm_start: WarmStart | None = None
    ) -> None:
        self.id = kernel_id
        self.language = language
        self.cwd = cwd
        self.env = dict(env)
        self._warm_start = warm_start
        self.lock = asyncio.Lock()
        """Held while code runs or the process is exchanged: a kernel does one thing at a time."""
        self.process: Process | None = None
        self.started_at = time.time()
        self.warm = False
        self.interrupted = False
        """Whether somebody has asked to interrupt the run that goes on."""
        self._starting = False
        """Whether the process has not said yet that it takes code."""
        self._notes: tuple[str, ...] = ()
        """Remarks of a new process, which the next result passes on."""
        self._cursors = {"stdout": 0, "stderr": 0}
        self._count = 0

    def info(self) -> KernelInfo:
        dead = self.process is None
        state = KernelState.DEAD if dead else KernelState.BUSY if self.lock.locked() else KernelState.IDLE
        return KernelInfo(
            id=self.id, language=self.language, cwd=self.cwd, state=state,
            job=self.process.id if self.process is not None else "", started_at=self.started_at, warm=self.warm,
        )  # fmt: skip

    # --- the process ------------------------------------------------------------------------------------------

    def job_name(self) -> str:
        """Return the name of its job, from which `adopt` makes the kernel again."""
        return f"kernel:{self.language}:{self.id}:{self.cwd}"

    def adopt(self, process: Process, started_at: float, stdout: int, stderr: int, *, warm: bool) -> None:
        """Use the process that an earlier keeper started. What it wrote until now is nobody's."""
        self.process = process
        self.warm = warm
        self.started_at = started_at
        self._cursors = {"stdout": stdout, "stderr": stderr}

    async def start(self, instance: Instance, *, wait: bool = True) -> Process:
        """Start the interpreter and wait until it takes code; without `wait` not for a forked one, which soon will.

        Raises:
            NotRunnable: The box has no such program, or it ended at once.
        """
        start = program(self.language)
        command = Command(
            command=start.argv, cwd=self.cwd or None, env=self.env, name=self.job_name(), follow=True
        )  # fmt: skip
        self.warm = False
        if self._warm_start is not None and self.language is Language.PYTHON:
            forked = await self._warm_start(instance, command)
            if forked is not None:
                self.warm = True
                self._notes = (*self._notes, *forked[1])
                if wait:
                    return await self._begin(instance, forked[0], b"")
                self._reset()
                self._starting = True
                self.process = forked[0]
                return forked[0]
        try:
            process = await instance.start(command)
        except NotRunnable as error:
            remedy = (
                f"use an image that has {start.argv[0]}" if error.details.get("what") == "program" else error.remedy
            )
            raise NotRunnable(
                f"this box cannot run {self.language}: {error.message}", details=error.details, remedy=remedy
            ) from error
        return await self._begin(instance, process, start.first)

    async def wake(self, instance: Instance, process: Process, *, warm: bool) -> None:
        """Use a process that has just got the memory of a kernel of another box."""
        self.warm = warm
        await self._begin(instance, process, WAKE)

    def note(self, text: str) -> None:
        """Have the next result say this."""
        self._notes = (*self._notes, text)

    async def _begin(self, instance: Instance, process: Process, first: bytes) -> Process:
        """Wait until a new process takes code."""
        self._reset()
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = await self._await_ready(process, first)
        except TimeoutError as error:
            await self._discard(instance, process)
            raise NotRunnable(f"the {self.language} kernel did not answer for {START_SECONDS:g} s") from error
        except BaseException:
            await asyncio.shield(self._discard(instance, process))
            raise
        self._notes = (*self._notes, *ready.notes)
        self.process = process
        return process

    def _reset(self) -> None:
        """Forget what an earlier process has said and counted."""
        self._cursors = {"stdout": 0, "stderr": 0}
        self._count = 0
        self._starting = False
        self.started_at = time.time()

    async def _await_ready(self, process: Process, first: bytes) -> Ready:
        if self.language is Language.BASH:
            await process.write(b"trap : INT\n")
            return Ready()
        if first:
            with suppress(Conflict):  # It has ended already; its output says why.
                await process.write(first)
        lines, complaints = Lines(), b""
        pieces = process.follow()
        try:
            async for stream, data in pieces:
                self._cursors[stream] += len(data)
                if stream == "stderr":
                    complaints = (complaints + data)[-4096:]
                    continue
                for message in lines.feed(data):
                    if isinstance(message, Ready):
                        self._cursors["stdout"] = lines.consumed
                        return message
        finally:
            await pieces.aclose()  # type: ignore[attr-defined]
        ended = await process.wait()
        reason = complaints.decode("utf-8", "replace").strip().splitlines()[-1:] or [ended.verdict.message]
        missing = ended.exit_code == 127
        raise NotRunnable(
            f"this box cannot run {self.language}: {reason[0]}",
            remedy="use an image that has its program" if missing else ended.verdict.remedy,
        )

    async def end(self, instance: Instance) -> None:
        """Kill the process and forget its job."""
        process, self.process = self.process, None
        if process is not None:
            await self._discard(instance, process)

    async def _discard(self, instance: Instance, process: Process) -> None:
        with suppress(NotFound, Unavailable):  # The guest that had it is gone, and so is the process.
            await process.signal(SIGKILL)
            with suppress(Timeout):
                await process.wait(INTERRUPT_SECONDS)
            with suppress(Conflict):
                await instance.forget(process.id)

    async def interrupt(self) -> None:
        """Interrupt the code that runs, and its children."""
        self.interrupted = True
        await self.signal_interrupt()

    async def signal_interrupt(self) -> None:
        """Send what makes the interpreter stop its code."""
        process = self.process
        if process is None:
            return
        with suppress(Conflict, NotFound):
            await process.signal(SIGINT)
            if self.language is not Language.BASH:
                await process.write(b'{"op":"interrupt"}\n')

    # --- one run ----------------------------------------------------------------------------------------------

    async def stream(
        self, instance: Instance, code: str, *, timeout_sec: float | None, env: Mapping[str, str], keep_output: int
    ) -> AsyncGenerator[CodePiece, None]:
        """Run code; the last piece has the result. Leaving early interrupts it, and the kernel stays usable."""
        await self.lock.acquire()
        run: Run | None = None
        self.interrupted = False
        try:
            process = self.process or await self.start(instance, wait=False)
            notes, self._notes = self._notes, ()
            starting, self._starting = self._starting, False
            self._count += 1
            run = Run(self, process, timeout_sec, keep_output, notes, starting=starting)
            if not await run.begin(code, env):
                await run.close()
                run = None
                await self.end(instance)
                process = await self.start(instance)
                if not starting:
                    notes = (f"kernel {self.id} had ended since its last run: this is a new one, its state is gone",)
                run = Run(self, process, timeout_sec, keep_output, (*notes, *self._notes))
                await run.begin(code, env)
            if self.interrupted:  # Somebody did not wait until there was something to interrupt.
                await self.signal_interrupt()
            async for piece in run.pieces():
                yield piece
            if run.died:
                await self.end(instance)
                self._notes = (f"kernel {self.id} died in an earlier run: this is a new one, its state is gone",)
        finally:
            if run is None or run.finished:
                self.lock.release()
            else:
                recovery = asyncio.ensure_future(self._recover(instance, run))
                recovery.add_done_callback(lambda _: self.lock.release())
                await asyncio.shield(recovery)

    async def _recover(self, instance: Instance, run: "Run") -> None:
        """Interrupt code that nobody waits for any more; kill its kernel if that does not end it."""
        try:
            if not await run.abandon():
                await self.end(instance)
                self._notes = (f"kernel {self.id} was killed, because its last run could not be interrupted",)
        except HutchError:
            self.process = None  # The box is gone or cannot be reached; the next run finds out which.
        finally:
            await run.close()

    def advance(self, stream: str, size: int) -> None:
        """Note that this much of a stream belongs to runs that have ended."""
        self._cursors[stream] += size

    @property
    def cursors(self) -> dict[str, int]:
        return dict(self._cursors)

    @property
    def count(self) -> int:
        return self._count


class Run:
    """One piece of code from its start to its result."""

    def __init__(
        self, kernel: Kernel, process: Process, timeout_sec: float | None, keep_output: int, notes: tuple[str, ...],
        *, starting: bool = False,
    ) -> None:  # fmt: skip
        """`starting`: the kernel will say that it takes code, and the time counts from then on."""
        self.finished = False
        self.died = False
        self._kernel = kernel
        self._process = process
        self._id = secrets.token_hex(12)
        self._timeout = timeout_sec
        self._collected = Collected(keep_output)
        self._notes = notes
        self._began = time.monotonic()
        self._queue: asyncio.Queue[Message | Ended | HutchError] = asyncio.Queue(_AHEAD)
        self._reader: asyncio.Task[None] | None = None
        self._starting = starting
        self._timed_out = False
        self._given_up_at = 0.0

    async def begin(self, code: str, env: Mapping[str, str]) -> bool:
        """Send the code; return False if the kernel has ended since its last run.

        The reader is started first, so that the kernel never waits for one.
        """
        kernel = self._kernel
        self._reader = asyncio.create_task(self._read(), name=f"kernel {kernel.id}")
        if kernel.language is Language.BASH:
            request = run_script(self._id, code, env)
        else:
            fields = {"op": "run", "run": self._id, "language": str(kernel.language), "code": code, "env": dict(env)}
            request = msgspec.json.encode(fields) + b"\n"
        try:
            await self._process.write(request)
        except (Conflict, NotFound, Unavailable):
            # It has ended, or the guest that had it. If the box itself cannot be reached, starting a new one says so.
            return False
        return True

    async def _read(self) -> None:
        """Put the run's messages into the queue until it is done or its process has ended."""
        try:
            if self._kernel.language is Language.BASH:
                done = await self._read_bash()
            else:
                done = await self._read_lines()
            if not done:
                await self._queue.put(Ended(await self._process.wait()))
        except (NotFound, Unavailable) as error:
            await self._queue.put(await self._lost(error))
        except HutchError as error:
            await self._queue.put(error)

    async def _lost(self, error: HutchError) -> Ended | HutchError:
        """Tell a kernel that has ended with its guest, which its code can kill, from a box that cannot be reached."""
        if isinstance(error, Unavailable):
            try:
                await self._process.info()
                return error
            except NotFound:
                pass  # The guest that the kernel was forked from is gone.
            except HutchError as unreachable:
                return unreachable
        verdict = Verdict(cause=Cause.SIGNAL, message="it was killed together with its guest")
        return Ended(Result(job_id=self._process.id, exit_code=None, signal=9, verdict=verdict))

    async def _read_lines(self) -> bool:
        lines, cursors = Lines(), self._kernel.cursors
        pieces = self._process.follow(cursors["stdout"], cursors["stderr"])
        try:
            async for stream, data in pieces:
                if stream == "stderr":  # Only what bypasses the kernel is there: a crash, or children of Node.
                    self._kernel.advance("stderr", len(data))
                    text = data.decode("utf-8", "replace")
                    await self._queue.put(Printed(run=self._id, name="stderr", text=text))
                    continue
                for message in lines.feed(data):
                    ours = self._starting if isinstance(message, Ready) else message.run == self._id
                    if not ours:
                        continue  # It belongs to a run that an earlier keeper gave up.
                    await self._queue.put(message)
                    if isinstance(message, Done):
                        self._kernel.advance("stdout", lines.consumed)
                        return True
        finally:
            await pieces.aclose()  # type: ignore[attr-defined]
        return False

    async def _read_bash(self) -> bool:
        output, cursors = BashOutput(self._id, self._kernel.count), self._kernel.cursors
        pieces = self._process.follow(cursors["stdout"], cursors["stderr"])
        try:
            async for stream, data in pieces:
                for message in output.feed(stream, data):
                    await self._queue.put(message)
                    if isinstance(message, Done):
                        for name, size in output.consumed.items():
                            self._kernel.advance(name, size)
                        return True
        finally:
            await pieces.aclose()  # type: ignore[attr-defined]
        return False

    async def pieces(self) -> AsyncGenerator[CodePiece, None]:
        """Yield what arrives, and at the end the result."""
        while True:
            message = await self._next()
            if isinstance(message, HutchError):
                self.finished = True
                raise message
            if isinstance(message, Ready):
                self._starting = False
                self._began = time.monotonic()
                self._notes = (*self._notes, *message.notes)
            elif isinstance(message, Printed):
                stream = "stderr" if message.name == "stderr" else "stdout"
                self._collected.print(stream, message.text)
                yield CodePiece(stream=stream, text=message.text)
            elif isinstance(message, Shown):
                display = Display(data=message.data, main=message.main)
                if self._collected.show(display):
                    yield CodePiece(display=display)
            elif isinstance(message, Done | Ended):
                self.finished = True
                result = self._done(message) if isinstance(message, Done) else self._ended(message.result)
                if result.error is not None:
                    yield CodePiece(error=result.error)
                yield CodePiece(result=result)
                return

    async def _next(self) -> Message | Ended | HutchError:
        """Return the next message. At the deadline the code is interrupted, and killed if that does not help."""
        while not self._timed_out:
            seconds = START_SECONDS if self._starting else self._timeout
            if seconds is None:
                return await self._queue.get()
            try:
                async with asyncio.timeout(max(0.0, self._began + seconds - time.monotonic())):
                    return await self._queue.get()
            except TimeoutError:
                self._timed_out = True
                self._timeout = seconds
                self._given_up_at = time.monotonic() + INTERRUPT_SECONDS
                await self._kernel.signal_interrupt()
        try:
            async with asyncio.timeout(max(0.0, self._given_up_at - time.monotonic())):
                return await self._queue.get()
        except TimeoutError:
            await self._process.signal(SIGKILL)
            return await self._queue.get()

    async def abandon(self) -> bool:
        """Interrupt the code and read on until it is done; return whether it is."""
        await self._kernel.signal_interrupt()
        try:
            async with asyncio.timeout(INTERRUPT_SECONDS):
                while True:
                    if isinstance(message := await self._queue.get(), Done | Ended | HutchError):
                        return isinstance(message, Done)
        except TimeoutError:
            return False

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            with suppress(asyncio.CancelledError):
                await self._reader

    def _done(self, done: Done) -> CodeResult:
        error = done.error
        if self._timed_out:
            verdict = Verdict(
                cause=Cause.TIMEOUT, message=f"the code was interrupted after {self._timeout:g} s; its kernel goes on",
                limit=self._timeout, unit="s", remedy="give it more time, or do less at once",
            )  # fmt: skip
        elif error is None:
            verdict = Verdict(cause=Cause.OK)
        elif self._kernel.interrupted and "Interrupt" in error.name:
            verdict = Verdict(cause=Cause.CANCELLED, message="the code was interrupted; its kernel goes on")
        else:
            verdict = Verdict(cause=Cause.EXIT, message=f"the code raised {error.name}: {error.value}"[:500])
        return self._result(verdict, error, done.count, done.dropped)

    def _ended(self, ended: Result) -> CodeResult:
        """The result of code whose interpreter has ended: the box and its other kernels go on."""
        self.died = True
        verdict = ended.verdict
        if self._timed_out:
            verdict = Verdict(
                cause=Cause.TIMEOUT, limit=self._timeout, unit="s",
                message=f"the code ran for more than {self._timeout:g} s and did not stop, so its kernel was killed",
                remedy="give it more time; the next run starts a new kernel without the old state",
            )  # fmt: skip
        elif verdict.ok:
            verdict = Verdict(cause=Cause.EXIT, message="the interpreter ended")
        how = f"signal {ended.signal}" if ended.signal is not None else f"exit code {ended.exit_code}"
        value = f"the {self._kernel.language} kernel ended with {how}: {verdict.message}"
        return self._result(verdict, CodeError(name=KERNEL_DIED, value=value, traceback=value), 0, 0)

    def _result(self, verdict: Verdict, error: CodeError | None, count: int, dropped: int) -> CodeResult:
        kept = self._collected.result(self._kernel.id, self._kernel.language)
        return kept.but(
            count=count, error=error, verdict=verdict, displays_dropped=kept.displays_dropped + max(0, dropped),
            duration_sec=time.monotonic() - self._began, notes=self._notes,
        )  # fmt: skip
