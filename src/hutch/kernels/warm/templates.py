"""The keeper's template processes: one for each owner, started at first use and renewed after a number of forks.

All kernels of a template share what is fixed when an interpreter starts, such as the seed of its string hashes. So no
two owners share one, and one owner's kernels do not share it for long.
"""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hutch.errors import NotFound, Unavailable
from hutch.kernels import environment
from hutch.logs import log
from hutch.providers.base import Command, Instance
from hutch.providers.guest_client.link import Link
from hutch.providers.guest_client.process import GuestProcess
from hutch.providers.handles import Entrance
from hutch.providers.native.instance import KERNEL_GUEST, NativeInstance
from hutch.providers.native.spawn import wire

MAX_FORKS = 200
"""Kernel guests that one template is forked into before a new one takes its place."""
MAX_TEMPLATES = 8
"""The owner who has waited longest gives his up for another: each has about 100 MB of its own."""
GUEST = "kernels"
"""The name by which an instance knows the link to its box's kernel guest."""
_START_SECONDS = 120.0
_ENTER_SECONDS = 20.0
_SOURCE = str(Path(__file__).parents[3])
_SOCKET = 3
_BOOT = f"""
import os, sys
os.chdir("/")
sys.path[:] = [path for path in sys.path if path]
sys.path.append(sys.argv[1])
from hutch.kernels.warm.template import main
main({_SOCKET}, sys.argv[2:])
os._exit(0)
"""
# Threads of a library would keep the template from entering a box, and would not exist in its forks anyway.
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "LANG": "C.UTF-8", "HOME": "/",
    "MPLBACKEND": "agg", "PATH": "/usr/local/bin:/usr/bin:/bin",
}  # fmt: skip


class Template:
    """One template process."""

    def __init__(self, prepared: environment.Environment, cache: str) -> None:
        """`cache` is where libraries may keep what they find out about this machine, such as its fonts."""
        self.forks = 0
        self.used_at = time.monotonic()
        self.missing: dict[str, str] = {}
        """Libraries that could not be imported, with the reason."""
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
        with theirs:
            self.pid = os.posix_spawn(
                prepared.python,
                [prepared.python, "-s", "-c", _BOOT, _SOURCE, *prepared.libraries],
                _ENVIRONMENT | {"MPLCONFIGDIR": cache, "IPYTHONDIR": cache},
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), _SOCKET), *null],
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
            )
        self._sock.setblocking(False)

    async def wait_until_ready(self) -> None:
        """Wait until everything is imported.

        Raises:
            Unavailable: The process ended, or a library started threads.
        """
        answer = await receive(self._sock, _START_SECONDS)
        if answer is None or answer.get("threads") != 1:
            reason = "it ended" if answer is None else f"its libraries started {answer.get('threads')} threads"
            raise Unavailable(
                f"no interpreter could be prepared: {reason}", op="kernel", remedy="run `hutch kernel prepare` again"
            )
        self.missing = answer["missing"]

    async def enter(self, entrance: Entrance, kernel: Mapping[str, Any]) -> dict[str, Any]:
        """Fork a kernel guest into the box, and return what it says about its first kernel.

        Raises:
            Unavailable: It could not enter; the message names the step.
        """
        self.forks += 1
        self.used_at = time.monotonic()
        path = f"{entrance.directory}/{KERNEL_GUEST}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # Left by a kernel guest that has ended.
        ours, theirs = wire.pair()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        options = wire.write_memfd(msgspec.json.encode({**entrance.options, "kernel": kernel}))
        try:
            listener.bind(path)
            listener.listen(64)
            message = {
                "unified": entrance.unified, "pid": entrance.pid, "has_id_ranges": entrance.has_id_ranges
            }  # fmt: skip
            fds = [entrance.pidfd, listener.fileno(), options, theirs.fileno(), *entrance.groups]
            wire.send(self._sock, message, fds)
            theirs.close()
            ours.setblocking(False)
            while True:
                report = await receive(ours, _ENTER_SECONDS)
                if report is None or "error" in report:
                    step, error = (report or {}).get("step", "enter"), (report or {}).get("error", "the fork ended")
                    raise Unavailable(f"no interpreter could enter the box: {step}: {error}", op="kernel")
                if "pid" in report:
                    entrance.entered(int(report["pid"]))
                if "ready" in report:
                    started: dict[str, Any] = report["started"]
                    return started
        except OSError as error:
            raise Unavailable(f"no interpreter could enter the box: {error}", op="kernel") from error
        finally:
            os.close(options)
            for each in (listener, ours, theirs):
                each.close()

    def close(self) -> None:
        """Close the connection, which ends the process. Kernels go on."""
        self._sock.close()

    async def reap(self) -> None:
        """Wait for the end of the process."""
        with contextlib.suppress(ChildProcessError):
            await asyncio.to_thread(os.waitpid, self.pid, 0)


class KernelCounts:
    """What a keeper's kernels have done since it started."""

    def __init__(self) -> None:
        self.starts: Counter[str] = Counter()
        """Kernels by how they began: warm, cold or forked."""
        self.runs: Counter[tuple[str, str]] = Counter()
        """Runs by language, and by the cause of their verdict."""


class Templates:
    """All templates of one keeper."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._templates: dict[str, asyncio.Task[Template]] = {}
        self._retired: list[asyncio.Task[None]] = []
        self.counts = KernelCounts()
        self.failure = ""
        """Why no template could be started; "" if none failed."""

    async def start(
        self, instance: Instance, owner: str, command: Command
    ) -> tuple[GuestProcess, tuple[str, ...]] | None:
        """Start a kernel by a fork. Return it with notes for the caller, or None if this box has to start it cold."""
        if not isinstance(instance, NativeInstance):
            return None
        try:
            return await self._start(instance, owner, {"cwd": command.cwd, "env": command.env, "name": command.name})
        except (Unavailable, OSError) as error:
            # The kernel starts all the same, only later; whoever keeps the machine learns why.
            log("kernels").warning("a kernel starts cold", box=instance.record.box_id, why=str(error))
            self.failure = str(error)
            return None

    async def start_placeholder(self, instance: NativeInstance, owner: str, name: str) -> GuestProcess | None:
        """Start a process that waits for a kernel's memory, most of which it has already; None without a template."""
        started = await self._start(instance, owner, {"cwd": None, "env": None, "name": name, "placeholder": True})
        return None if started is None else started[0]

    async def _start(
        self, instance: NativeInstance, owner: str, kernel: dict[str, Any]
    ) -> tuple[GuestProcess, tuple[str, ...]] | None:
        prepared = environment.load(self._state_dir)
        if prepared is None:
            return None
        link = await self.find_guest(instance)
        if link is not None:
            return instance.started_kernel(await link.request("kernel", **kernel)), ()
        template = await self._template(owner, prepared)
        entrance = await instance.entrance()
        if entrance is None:
            return None
        try:
            started, _ = await asyncio.gather(template.enter(entrance, kernel), _greeting(instance))
        finally:
            await entrance.close()
        notes = tuple(f"{name} is not available: {why}" for name, why in template.missing.items())
        return instance.started_kernel(started), notes

    async def find_guest(self, instance: Instance) -> Link | None:
        """Return the link to the box's kernel guest; None if it has none."""
        if not isinstance(instance, NativeInstance):
            return None
        try:
            return await instance.link(GUEST)
        except NotFound:
            return None

    async def _template(self, owner: str, prepared: environment.Environment) -> Template:
        task = self._templates.get(owner)
        if task is not None and task.done() and (task.cancelled() or task.exception() or _used_up(task.result())):
            self._retire(self._templates.pop(owner))
            task = None
        if task is None:
            while len(self._templates) >= MAX_TEMPLATES:
                oldest = min(self._templates, key=lambda name: _last_use(self._templates[name]))
                self._retire(self._templates.pop(oldest))
            task = self._templates[owner] = asyncio.create_task(self._launched(prepared), name="kernel template")
        return await asyncio.shield(task)

    async def _launched(self, prepared: environment.Environment) -> Template:
        cache = self._state_dir / "kernels" / "cache"
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        template = Template(prepared, str(cache))
        try:
            await template.wait_until_ready()
        except BaseException:
            template.close()
            await asyncio.shield(template.reap())
            raise
        return template

    async def warm(self, owner: str) -> bool:
        """Start the owner's template now; return whether there is an environment for it."""
        prepared = environment.load(self._state_dir)
        if prepared is not None:
            await self._template(owner, prepared)
        return prepared is not None

    def _retire(self, task: "asyncio.Task[Template]") -> None:
        if not task.done() or task.cancelled() or task.exception():
            task.cancel()
            return
        template = task.result()
        template.close()
        self._retired = [each for each in self._retired if not each.done()]
        self._retired.append(asyncio.create_task(template.reap()))

    async def close(self) -> None:
        """End all templates. Kernels go on."""
        for owner in tuple(self._templates):
            self._retire(self._templates.pop(owner))
        for task in self._retired:
            await task


async def _greeting(instance: NativeInstance) -> None:
    """Connect to the kernel guest while it is on its way: the socket is there already, and it greets when it serves."""
    await instance.link(GUEST)


def _used_up(template: Template) -> bool:
    return template.forks >= MAX_FORKS


def _last_use(task: "asyncio.Task[Template]") -> float:
    return task.result().used_at if task.done() and not task.cancelled() and not task.exception() else time.monotonic()


async def receive(sock: socket.socket, seconds: float) -> dict[str, Any] | None:
    """The next message; None at the end of the connection, or if none comes in time."""
    loop = asyncio.get_running_loop()
    readable = loop.create_future()

    def wake() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(sock.fileno(), wake)
    try:
        async with asyncio.timeout(seconds):
            await readable
        received = wire.receive(sock)
        return None if received is None else received[0]
    except (TimeoutError, OSError):
        return None
    finally:
        loop.remove_reader(sock.fileno())
