"""The keeper's part of a live fork: copies of a box's Python kernels, taken at one moment and given to each new box."""

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from hutch.errors import Conflict, EngineError, HutchError
from hutch.kernels.kernel import Kernel
from hutch.kernels.messages import Done, Forked, Lines
from hutch.kernels.warm.templates import receive
from hutch.linux import processes
from hutch.model.code import Language
from hutch.providers.base import Command
from hutch.providers.guest_client.process import GuestProcess
from hutch.providers.handles import Process
from hutch.providers.native.entrance import host_pid
from hutch.providers.native.instance import NativeInstance
from hutch.providers.native.spawn import wire

_FORK_SECONDS = 30.0
_COPY_SECONDS = 120.0
_SOCKET = 3
_SOURCE = str(Path(__file__).parents[3])
_BOOT = f"""
import sys
sys.path[:] = [sys.argv[1], *(path for path in sys.path if path)]
from hutch.kernels.live.copier import main
main({_SOCKET})
"""
_PLACEHOLDER = ("sleep", "120")


class KernelCopy(NamedTuple):
    """A parked copy of a kernel: a process of the box that is forked."""

    kernel: Kernel
    pid: int
    """On the host."""
    pidfd: int


@asynccontextmanager
async def park_copy(kernel: Kernel, box: NativeInstance) -> AsyncIterator[KernelCopy]:
    """Have an idle kernel fork itself. The copy ends with the context, and the kernel goes on.

    Raises:
        Conflict: The kernel could not fork, or does not answer.
    """
    process = kernel.process
    assert isinstance(process, GuestProcess)
    run = secrets.token_hex(12)
    lines = _RunLines(kernel, process, run)
    try:
        parent = await box.host_pid(process)
        await process.write(msgspec.json.encode({"op": "fork", "run": run}) + b"\n")
        forked = await lines.next()
        pid = host_pid(parent, forked.pid) if parent and isinstance(forked, Forked) else 0
        if not pid:
            error = forked.error if isinstance(forked, Done) else None
            raise Conflict(
                f"kernel {kernel.id} could not fork itself: {error.value if error else 'it did not answer'}", op="fork",
                remedy="restart it, or give the box more processes and memory",
            )  # fmt: skip
        pidfd = os.pidfd_open(pid)
        try:
            yield KernelCopy(kernel, pid, pidfd)
        finally:
            processes.kill(pidfd, signal.SIGKILL)
            os.close(pidfd)
            await asyncio.shield(lines.next())  # The kernel takes code again when it has seen the end of its copy.
    finally:
        await lines.close()


class _RunLines:
    """What a kernel answers to one request."""

    def __init__(self, kernel: Kernel, process: Process, run: str) -> None:
        self._kernel = kernel
        self._run = run
        self._lines = Lines()
        self._waiting: list[Forked | Done] = []
        cursors = kernel.cursors
        self._pieces = process.follow(cursors["stdout"], cursors["stderr"])

    async def next(self) -> Forked | Done | None:
        """Return the next message about the fork; None if the kernel ends, or none comes in time."""
        try:
            async with asyncio.timeout(_FORK_SECONDS):
                while not self._waiting:
                    stream, data = await anext(self._pieces)
                    if stream == "stderr":
                        self._kernel.advance("stderr", len(data))
                        continue
                    for message in self._lines.feed(data):
                        if isinstance(message, Forked | Done) and message.run == self._run:
                            self._waiting.append(message)
        except (TimeoutError, StopAsyncIteration, HutchError):
            return None
        return self._waiting.pop(0)

    async def close(self) -> None:
        self._kernel.advance("stdout", self._lines.consumed)
        await self._pieces.aclose()  # type: ignore[attr-defined]


async def start_cold_placeholder(box: NativeInstance, name: str) -> GuestProcess:
    """Start a small program of the box whose place a kernel can take."""
    return await box.start(Command(command=_PLACEHOLDER, name=name, follow=True))


class Copier:
    """The process that copies one kernel; it is started while the placeholders are, because it has to import first."""

    def __init__(self) -> None:
        self._sock, theirs = wire.pair()
        with theirs:
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", "-c", _BOOT, _SOURCE],
                {"LANG": "C.UTF-8"},
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), _SOCKET)],
                setsid=True,
            )

    async def copy(self, copy: KernelCopy, placeholders: Sequence[tuple[NativeInstance, GuestProcess]]) -> None:
        """Make each placeholder continue as the copy.

        Raises:
            EngineError: It could not; the placeholders have ended.
        """
        pids = [await box.host_pid(process) for box, process in placeholders]
        targets: list[int] = []
        try:
            targets += [os.pidfd_open(pid) for pid in pids]
            wire.send(self._sock, {"source": copy.pid, "targets": pids}, [copy.pidfd, *targets])
            self._sock.setblocking(False)
            report = await receive(self._sock, _COPY_SECONDS)
        finally:
            for pidfd in targets:
                os.close(pidfd)
        if report is None or "error" in report:
            why = "it took too long" if report is None else str(report["error"])
            raise EngineError(
                f"kernel {copy.kernel.id} could not be copied: {why}", op="fork",
                remedy="fork without kernel, and run in each fork what it needs",
            )  # fmt: skip

    async def close(self) -> None:
        """End the process."""
        self._sock.close()
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)  # Not reaped yet, so the pid is its own. It has ended, or hangs.
        await asyncio.to_thread(os.waitpid, self._pid, 0)


def check_forkable(kernels: Sequence[Kernel], box_id: str) -> list[Kernel]:
    """Return the kernels that a live fork takes along: all that speak Python.

    Raises:
        Conflict: There is none, or one is busy.
    """
    found = [each for each in kernels if each.language is Language.PYTHON and each.process is not None]
    if not found:
        raise Conflict(
            f"box {box_id} has no Python kernel to fork", op="fork", remedy="run code first, or fork without kernel"
        )
    for each in found:
        if each.lock.locked():
            raise Conflict(
                f"kernel {each.id} runs code, and only an idle kernel can be forked", op="fork", retryable=True,
                remedy="wait until it is done, or interrupt it",
            )  # fmt: skip
    return found
