"""The kernels of one box, by their ids: started at first use, and found again by a keeper that takes the box over."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

from hutch.errors import Conflict, Invalid, NotFound, QuotaExceeded
from hutch.kernels.bash import is_name
from hutch.kernels.kernel import Kernel
from hutch.kernels.live.fork import Copier, KernelCopy, check_forkable, park_copy, start_cold_placeholder
from hutch.kernels.warm.templates import Templates
from hutch.model.code import (
    LANGUAGE_ALIASES,
    CodeError,
    CodePiece,
    CodeResult,
    KernelInfo,
    KernelState,
    Language,
)
from hutch.model.layers import no_live_fork
from hutch.model.results import Cause, JobState, Verdict
from hutch.providers.base import Command, Instance
from hutch.providers.guest_client.process import GuestProcess
from hutch.providers.handles import Process
from hutch.providers.native.instance import NativeInstance

MAX_KERNELS = 64
MAX_CODE = 8 << 20


def language_of(text: str) -> Language:
    """Return the language of this name or alias.

    Raises:
        Invalid: Nobody knows it.
    """
    name = text.strip().lower()
    try:
        return LANGUAGE_ALIASES.get(name) or Language(name)
    except ValueError:
        known = ", ".join(Language)
        raise Invalid(f"no kernel speaks {text[:40]!r}", op="code", remedy=f"choose one of {known}") from None


def check_run(code: str, env: Mapping[str, str]) -> None:
    """Check code and variables of a run.

    Raises:
        Invalid: The code is too large or no text, or a variable has no proper name.
    """
    if not isinstance(code, str):
        raise Invalid(f"code is text, not {type(code).__name__}", op="code")
    if len(code) > MAX_CODE:
        raise Invalid(
            f"the code has more than {MAX_CODE >> 20} MB", op="code", remedy="write it to a file and run that"
        )
    try:
        code.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"the code is no valid text: {error.reason}", op="code") from error
    for name, value in env.items():
        if not is_name(name) or "\0" in value:
            raise Invalid(f"{name[:40]!r} cannot be a variable of the environment", op="code")


def _unreadable(kernel: Kernel) -> CodeResult:
    """The result of a script that no shell can read."""
    error = CodeError(name="SyntaxError", value="a script may hold no NUL byte", traceback="SyntaxError: a NUL byte")
    verdict = Verdict(cause=Cause.EXIT, message=error.value)
    return CodeResult(kernel=kernel.id, language=kernel.language, error=error, verdict=verdict)


class KernelTable:
    """All kernels of one box. It lives as long as its keeper holds the box."""

    def __init__(self, templates: Templates | None = None, owner: str = "") -> None:
        """`templates` are the keeper's prepared interpreters, of which the box's owner has his own."""
        self._templates = templates
        self._owner = owner
        self._kernels: dict[str, Kernel] = {}
        self._loaded_from: Instance | None = None
        self._loading = asyncio.Lock()
        """Held while the box's jobs are read, so that nobody starts a kernel that is about to be found."""

    async def start(self, instance: Instance, language: str, cwd: str, env: Mapping[str, str]) -> KernelInfo:
        await self._load(instance)
        if len(self._kernels) >= MAX_KERNELS:
            raise QuotaExceeded(
                f"the box has {MAX_KERNELS} kernels already", op="kernels", remedy="remove one that is not needed"
            )
        check_run("", env)
        kernel = self._new(f"k-{secrets.token_hex(4)}", language_of(language), cwd, env)
        self._kernels[kernel.id] = kernel
        try:
            async with kernel.lock:
                await kernel.start(instance)
        except BaseException:
            self._kernels.pop(kernel.id, None)
            raise
        return kernel.info()

    async def all(self, instance: Instance) -> tuple[KernelInfo, ...]:
        await self._load(instance)
        running = {job.id for job in await instance.jobs() if job.state is JobState.RUNNING}
        infos = [kernel.info() for kernel in self._kernels.values()]
        seen = [info if info.job in running else info.but(state=KernelState.DEAD) for info in infos]
        return tuple(sorted(seen, key=lambda info: info.started_at))

    async def stream(
        self, instance: Instance, language: str, code: str, *, kernel_id: str, timeout_sec: float | None,
        env: Mapping[str, str], keep_output: int,
    ) -> AsyncGenerator[CodePiece, None]:  # fmt: skip
        check_run(code, env)
        kernel = await self._find_or_make(instance, language, kernel_id)
        if kernel.language is Language.BASH and "\0" in code:
            yield CodePiece(result=_unreadable(kernel))
            return
        pieces = kernel.stream(instance, code, timeout_sec=timeout_sec, env=env, keep_output=keep_output)
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    async def interrupt(self, instance: Instance, kernel_id: str) -> None:
        await (await self._find(instance, kernel_id)).interrupt()

    async def restart(self, instance: Instance, kernel_id: str) -> KernelInfo:
        kernel = await self._find(instance, kernel_id)
        await kernel.interrupt()
        process = kernel.process
        if kernel.lock.locked() and process is not None:
            await process.signal(9)  # Whoever runs code there learns that the kernel has ended.
        async with kernel.lock:
            await kernel.end(instance)
            await kernel.start(instance)
        return kernel.info()

    async def remove(self, instance: Instance, kernel_id: str) -> None:
        kernel = await self._find(instance, kernel_id)
        del self._kernels[kernel_id]
        process = kernel.process
        if process is not None:
            await process.signal(9)
        async with kernel.lock:
            await kernel.end(instance)

    # --- live forks -------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def copies(self, instance: Instance) -> "AsyncIterator[Copies]":
        """Copy all Python kernels of the box at one moment. They run no code until the context ends.

        Raises:
            Unsupported: The box is none of the native engine.
            Conflict: There is no such kernel, or one is busy or dead.
        """
        if not isinstance(instance, NativeInstance):
            raise no_live_fork()
        infos = await self.all(instance)
        forked = check_forkable(list(self._kernels.values()), instance.record.box_id)
        dead = [info.id for info in infos if info.state is KernelState.DEAD and info.language is Language.PYTHON]
        if dead:
            raise Conflict(f"kernel {dead[0]} has died", op="fork", remedy="run code in it, or remove it")
        others = [each for each in self._kernels.values() if each.process is not None and each not in forked]
        async with AsyncExitStack() as stack:
            for kernel in forked:
                await stack.enter_async_context(kernel.lock)
            copies = [await stack.enter_async_context(park_copy(kernel, instance)) for kernel in forked]
            yield Copies(copies, others, instance.record.box_id)

    async def start_placeholder(self, box: NativeInstance, copy: KernelCopy) -> GuestProcess:
        """Start the process of this box that becomes the copy."""
        await self._load(box)
        name = copy.kernel.job_name()
        placeholder = None
        if copy.kernel.warm and self._templates is not None:
            placeholder = await self._templates.start_placeholder(box, self._owner, name)
        return placeholder or await start_cold_placeholder(box, name)

    async def receive(self, box: NativeInstance, copy: KernelCopy, process: GuestProcess) -> None:
        """Take over the process that has become the copy."""
        old = copy.kernel
        kernel = self._new(old.id, old.language, old.cwd, old.env)
        await kernel.wake(box, process, warm=old.warm)
        self._count("forked")
        self._kernels[kernel.id] = kernel

    def miss(self, kernel: Kernel, box_id: str) -> None:
        """Have the first result of a kernel say that its state was not forked."""
        missed = self._kernels[kernel.id] = self._new(kernel.id, kernel.language, kernel.cwd, kernel.env)
        missed.note(
            f"kernel {kernel.id} is a new one: only Python kernels of box {box_id} were forked with their state"
        )

    def _new(self, kernel_id: str, language: Language, cwd: str, env: Mapping[str, str]) -> Kernel:
        return Kernel(kernel_id, language, cwd, env, self._fork if self._templates is not None else None)

    async def _fork(self, instance: Instance, command: Command) -> tuple[Process, tuple[str, ...]] | None:
        assert self._templates is not None
        started = await self._templates.start(instance, self._owner, command)
        self._count("cold" if started is None else "warm")
        return started

    def _count(self, start: str) -> None:
        if self._templates is not None:
            self._templates.counts.starts[start] += 1

    async def _find(self, instance: Instance, kernel_id: str) -> Kernel:
        await self._load(instance)
        kernel = self._kernels.get(kernel_id)
        if kernel is None:
            raise NotFound(f"the box has no kernel {kernel_id[:80]!r}", op="kernels", remedy="list them, or start one")
        return kernel

    async def _find_or_make(self, instance: Instance, language: str, kernel_id: str) -> Kernel:
        if kernel_id and kernel_id not in tuple(Language):
            kernel = await self._find(instance, kernel_id)
            if language and language_of(language) is not kernel.language:
                raise Invalid(f"kernel {kernel_id} speaks {kernel.language}, not {language[:40]}", op="code")
            return kernel
        await self._load(instance)
        spoken = language_of(kernel_id or language)
        if spoken not in self._kernels:
            self._kernels[spoken] = self._new(str(spoken), spoken, "", {})
        return self._kernels[spoken]

    async def _load(self, instance: Instance) -> None:
        """Find the kernels that an earlier keeper of this box has started."""
        async with self._loading:
            if self._loaded_from is instance:
                return
            self._kernels = {}
            # Asked first, so that the jobs of the guest of warm kernels are among those of the box.
            guest = await self._templates.find_guest(instance) if self._templates is not None else None
            warm = f"{str(guest.hello.get('boot'))[:6]}-" if guest is not None else "-"
            for job in await instance.jobs():
                parts = job.name.split(":", 3)
                if job.state is not JobState.RUNNING or len(parts) != 4 or parts[0] != "kernel":
                    continue
                if parts[1] in tuple(Language):
                    kernel = self._new(parts[2], Language(parts[1]), parts[3], {})
                    kernel.adopt(
                        await instance.job(job.id), job.started_at, job.stdout_total, job.stderr_total,
                        warm=job.id.startswith(warm),
                    )  # fmt: skip
                    self._kernels[kernel.id] = kernel
            self._loaded_from = instance


class Copies:
    """The parked copies of one box's kernels."""

    def __init__(self, copies: list[KernelCopy], others: list[Kernel], box_id: str) -> None:
        """`others` are kernels of languages that cannot be forked."""
        self._copies = copies
        self._others = others
        self._box_id = box_id

    async def give(self, boxes: Sequence[tuple[KernelTable, Instance]]) -> None:
        """Give each box, which is new and of the native engine, all kernels.

        Raises:
            EngineError: One could not be copied.
        """
        new = [(table, box) for table, box in boxes if isinstance(box, NativeInstance)]
        for copy in self._copies:
            copier = Copier()
            try:
                placeholders = await asyncio.gather(*(table.start_placeholder(box, copy) for table, box in new))
                into = [(table, box, process) for (table, box), process in zip(new, placeholders, strict=True)]
                await copier.copy(copy, [(box, process) for _, box, process in into])
            finally:
                await asyncio.shield(copier.close())
            await asyncio.gather(*(table.receive(box, copy, process) for table, box, process in into))
        for table, _ in new:
            for kernel in self._others:
                table.miss(kernel, self._box_id)
