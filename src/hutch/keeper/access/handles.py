"""The handle on a box that an application holds: it implements the public protocol over a live box."""

import asyncio
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hutch.errors import BoxBroken, HutchError, LeaseLost, Timeout, Unavailable, Unsupported
from hutch.keeper.access.jobs import JobHandle, StreamHandle, command_details
from hutch.keeper.access.views import box_info_with_jobs
from hutch.keeper.boxes.live import Live, lease_lost
from hutch.keeper.keeper import Keeper
from hutch.keeper.receipts.operations import Operation
from hutch.model.arguments import checked_command
from hutch.model.boxes import BoxInfo, Moved, State
from hutch.model.layers import Attempt, Checkpoint, Diff, Merge, Rollback
from hutch.model.receipts import Details
from hutch.model.results import JobInfo, Result, Usage
from hutch.model.spec import Adjustment, AutoCheckpoint, EffectiveSpec, Retention
from hutch.policy import rights
from hutch.policy.effective import clamp_timeout
from hutch.providers.base import Command, Instance

if TYPE_CHECKING:
    from hutch.keeper.access.code import KernelsHandle
    from hutch.keeper.access.files import GuardedFiles
    from hutch.keeper.access.layers import HandleLayers
    from hutch.keeper.access.ports import BoxStream, PreviewIssuer
    from hutch.model.boxes import PortInfo, Preview
    from hutch.model.code import CodeResult


class BoxHandle:
    """One session's handle on one box. It works while its epoch is the epoch of the box."""

    def __init__(self, keeper: Keeper, live: Live, session: str, notes: tuple[str, ...] = ()) -> None:
        self.notes = notes
        """Notes about the box itself: that it is new, or that an earlier one was lost."""
        self._keeper = keeper
        self._live = live
        self._session = session
        self._epoch = live.record.epoch
        self._open = True
        live.add_handle(session)

    @property
    def id(self) -> str:
        return self._live.record.id

    @property
    def spec(self) -> EffectiveSpec:
        return self._live.record.spec

    @property
    def adjustments(self) -> tuple[Adjustment, ...]:
        return self._live.record.spec.adjustments

    @cached_property
    def files(self) -> "GuardedFiles":
        from hutch.keeper.access.files import GuardedFiles  # Many boxes only run a command.

        return GuardedFiles(self)

    def files_as(self, user: str) -> "GuardedFiles":
        """Return the files with the rights of another user of the box. Refused if the caller may not act as root."""
        from hutch.keeper.access.files import GuardedFiles

        rights.check_user(user, self.spec.user, rights.current())
        return GuardedFiles(self, user)

    # --- one operation, guarded -----------------------------------------------------------------------------

    async def begin(self) -> Instance:
        """Check the epoch, pin the box, and resume it if it is paused. Every `begin` needs its `end`."""
        live = self._live
        live.check_not_gone()
        if not self._open:
            raise LeaseLost(f"box {self.id} was released by this handle", remedy="attach to it again")
        self._keeper.check_owned(live)
        if live.record.state is State.UNKNOWN:
            await self._keeper.health.recover(live)
        live.pin(self._epoch)
        if live.record.state is State.PAUSED:
            try:
                await self._keeper.pauser.resume(live)
            except BaseException:
                live.unpin()
                raise
        return live.running

    def end(self) -> None:
        self._live.unpin()

    def operation(self, op: str, details: Details) -> Operation:
        return self._keeper.operations.begin(self._live, self._session, op, details)

    def check_volumes(self, op: str, *, adds: bool = False) -> int:
        """Raise QuotaExceeded if the volumes of the box are too full for an operation; `adds` if it can only add.

        Return how often commands have been ended for that.
        """
        watchdog = self._keeper.volumes.watchdog
        return watchdog.admit(self._live, op, adds=adds) if watchdog is not None else 0

    def explained(self, result: Result, ends: int) -> Result:
        """Return the result with the verdict `disk` if its command was ended because volumes were full."""
        watchdog = self._keeper.volumes.watchdog
        return watchdog.explained(self._live, result, ends) if watchdog is not None else result

    async def failed(self, error: HutchError) -> None:
        """Check the box once after an error that a healthy box would not cause.

        A box whose guest is dead or has lied is marked as broken at once: a captured guest would pass the check.
        """
        if isinstance(error, BoxBroken):
            await self._keeper.health.mark_broken(self._live, error.message)
        elif isinstance(error, Unavailable):
            await self._keeper.health.check(self._live)

    # --- commands -------------------------------------------------------------------------------------------

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
        user: str | None = None,
        keep_output: int = 1 << 20,
    ) -> Result:
        order, notes = self._command(command, cwd, env, stdin, timeout, user, keep_output=keep_output)
        async with self.operation("exec", command_details(order)) as operation:
            instance = await self.begin()
            try:
                ends = self.check_volumes("exec")
                notes = (*notes, *await self.step())
                result = operation.result = self.explained(await instance.run(order), ends)
            except HutchError as error:
                await self.failed(error)
                raise
            finally:
                self.end()
        return result.but(notes=(*notes, *result.notes)) if notes else result

    async def step(self) -> tuple[str, ...]:
        """Make the automatic checkpoint before a command, if the box wants one; return notes about it."""
        return await self._layers.step() if self.spec.auto_checkpoint is AutoCheckpoint.EXEC else ()

    def stream(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
        user: str | None = None,
    ) -> StreamHandle:
        order, notes = self._command(command, cwd, env, stdin, timeout, user, follow=True)
        return StreamHandle(self, order, notes)

    async def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout: float | None = None,
        user: str | None = None,
        pty: bool = False,
        rows: int = 24,
        cols: int = 80,
        name: str = "",
        follow: bool = False,
        open_stdin: bool = True,
    ) -> JobHandle:
        rights.check_user(user, self.spec.user, rights.current())
        timeout, cut = rights.cut_timeout(timeout, rights.current())
        order = Command(
            command=checked_command(command), cwd=cwd, env=env or {}, timeout_sec=timeout, user=user, pty=pty,
            rows=rows, cols=cols, name=name, follow=follow, open_stdin=open_stdin,
        )  # fmt: skip
        async with self.operation("job.start", command_details(order)) as operation:
            instance = await self.begin()
            try:
                self.check_volumes("start")
                notes = await self.step() if follow else ()  # somebody waits for it, as for `exec`
                job = JobHandle(self, await instance.start(order), (*((str(cut),) if cut else ()), *notes))
            except HutchError as error:
                await self.failed(error)
                raise
            finally:
                self.end()
            operation.note(job=job.id)
        return job

    async def jobs(self) -> tuple[JobInfo, ...]:
        instance = await self.begin()
        try:
            return await instance.jobs()
        finally:
            self.end()

    async def job(self, job_id: str) -> JobHandle:
        instance = await self.begin()
        try:
            return JobHandle(self, await instance.job(job_id))
        finally:
            self.end()

    async def forget(self, job_id: str) -> None:
        async with self.operation("job.forget", {"job": job_id}):
            instance = await self.begin()
            try:
                await instance.forget(job_id)
            finally:
                self.end()

    def _command(
        self,
        command: str | Sequence[str],
        cwd: str | None,
        env: dict[str, str] | None,
        stdin: bytes | str | None,
        timeout: float | None,
        user: str | None,
        *,
        follow: bool = False,
        keep_output: int = 1 << 20,
    ) -> tuple[Command, tuple[str, ...]]:
        rights.check_user(user, self.spec.user, rights.current())
        wanted, clamped = clamp_timeout(timeout, self._live.record.spec.limits)
        seconds, cut = rights.cut_timeout(wanted or None, rights.current())
        order = Command(
            command=checked_command(command),
            cwd=cwd,
            env=env or {},
            stdin=stdin.encode() if isinstance(stdin, str) else stdin,
            timeout_sec=seconds,
            user=user,
            keep_output=keep_output,
            follow=follow,
        )
        return order, tuple(str(each) for each in (clamped, cut) if each)

    # --- states of its files --------------------------------------------------------------------------------

    @cached_property
    def _layers(self) -> "HandleLayers":
        from hutch.keeper.access.layers import HandleLayers  # Few boxes have checkpoints.

        return HandleLayers(self, self._keeper, self._live, self._session)

    async def checkpoint(self, name: str = "", *, kill: bool = False) -> Checkpoint:
        return await self._layers.checkpoint(name, kill=kill)

    async def checkpoints(self) -> tuple[Checkpoint, ...]:
        self._live.check_not_gone()
        return self._keeper.layers.checkpoints(self._live)

    async def delete_checkpoint(self, checkpoint: str) -> None:
        await self._layers.delete(checkpoint)

    async def rollback(self, checkpoint: str, *, kill: bool = False) -> Rollback:
        return await self._layers.rollback(checkpoint, kill=kill)

    async def undo(self, steps: int = 1, *, kill: bool = False) -> Rollback:
        return await self._layers.undo(steps, kill=kill)

    async def diff(self, start: str = "", end: str = "", *, text: bool = False) -> Diff:
        return await self._layers.diff(start, end, text=text)

    async def fork(
        self, count: int = 1, *, checkpoint: str = "", kernel: bool = False
    ) -> "tuple[BoxHandle, ...]":  # fmt: skip
        return await self._layers.fork(count, checkpoint, kernel=kernel)

    async def write_layer(self, path: str) -> None:
        """Write what the box has changed over its image to a new file, as the tar of a layer of an OCI image."""
        await self._layers.write_layer(path)

    async def merge(self, fork: str) -> Merge:
        return await self._layers.merge(fork)

    async def attempt(
        self,
        command: str | Sequence[str],
        *,
        check: str | Sequence[str] | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout: float | None = None,
        user: str | None = None,
        kill: bool = False,
    ) -> Attempt:
        order, _ = self._command(command, cwd, env, None, timeout, user)
        checking = None if check is None else self._command(check, cwd, env, None, timeout, user)[0]
        return await self._layers.attempt(order, checking, kill=kill)

    # --- ports ----------------------------------------------------------------------------------------------

    async def connect(self, port: int) -> "BoxStream":
        async with self.operation("port.connect", {"port": port}):
            await self.begin()
            try:
                return await self._keeper.ports.connect(self._live, port)
            finally:
                self.end()

    async def ports(self, *, wait: float = 0.0) -> tuple["PortInfo", ...]:
        await self.begin()
        try:
            return await self._keeper.ports.listening(self._live, wait=wait)
        finally:
            self.end()

    async def url(self, port: int, *, public: bool = False, ttl_sec: float = 3600.0) -> "Preview":
        async with self.operation("preview.open", {"port": port, "public": public, "ttl_sec": ttl_sec}) as operation:
            await self.begin()
            try:
                self._keeper.ports.watch(self._live)
                preview = await self._issuer.issue(self._live, port, public=public, ttl_sec=ttl_sec)
                operation.note(preview=preview.id)
                return preview
            finally:
                self.end()

    async def previews(self) -> tuple["Preview", ...]:
        self._live.check_not_gone()
        return await self._issuer.of_box(self._live.record.id) if self._keeper.previews is not None else ()

    async def revoke(self, preview_id: str) -> None:
        self._live.check_not_gone()
        async with self.operation("preview.revoke", {"preview": preview_id}):
            await self._issuer.revoke(self._live.record.id, preview_id)

    @property
    def _issuer(self) -> "PreviewIssuer":
        if self._keeper.previews is None:
            raise Unsupported(
                "previews are served by a server, and this process is none", op="url",
                remedy="start `hutch serve`, then run this again: it becomes the server's client; without a server "
                "`hutch box forward BOX PORT` or `Box.connect` reaches the port",
            )  # fmt: skip
        return self._keeper.previews

    # --- code -----------------------------------------------------------------------------------------------

    @cached_property
    def kernels(self) -> "KernelsHandle":
        from hutch.keeper.access.code import KernelsHandle  # Many boxes only run a command.

        return KernelsHandle(
            self, self._live, self._keeper.engines.templates, self._keeper.states.announce
        )  # fmt: skip

    async def python(
        self, code: str, *, timeout: float | None = None, env: dict[str, str] | None = None, kernel: str = ""
    ) -> "CodeResult":
        return await self.kernels.run("python", code, timeout=timeout, env=env, kernel=kernel)

    async def code(
        self, language: str, code: str, *, timeout: float | None = None, env: dict[str, str] | None = None,
        kernel: str = "",
    ) -> "CodeResult":  # fmt: skip
        return await self.kernels.run(language, code, timeout=timeout, env=env, kernel=kernel)

    # --- the box --------------------------------------------------------------------------------------------

    async def usage(self) -> Usage:
        instance = await self.begin()
        try:
            return await instance.usage()
        finally:
            self.end()

    async def info(self) -> BoxInfo:
        """Return what is known of the box; Gone if it has been destroyed."""
        self._live.check_not_gone()
        return await box_info_with_jobs(self._live)

    async def ready(self, timeout_sec: float | None = None) -> None:
        """Wait until a box that was created without waiting runs; its error is raised if it could not be created."""
        try:
            async with asyncio.timeout(timeout_sec):
                await self._keeper.creations.wait_for(self._live.record.id)
        except TimeoutError as error:
            raise Timeout(f"box {self.id} is still being created", remedy="wait longer") from error
        self._live.check_not_gone()

    async def move_to(self, template: str, /, *, kind: str = "", **values: object) -> None:
        from hutch.keeper.access.scopes import move_to_scope, scope

        await self.begin()
        try:
            target = scope(template, values, owner=self._live.record.owner, kind=kind)
            await move_to_scope(self._keeper, self._live, target, kind)
        finally:
            self.end()

    async def state(self) -> State:
        self._live.check_not_gone()
        return self._live.record.state

    async def pause(self) -> None:
        self._live.check_not_gone()
        await self._keeper.pauser.pause(self._live)

    async def resume(self) -> None:
        self._live.check_not_gone()
        await self._keeper.pauser.resume(self._live)

    async def stop(self) -> None:
        """End a persistent box's processes and keep its files; the next attach brings it back."""
        self._live.check_not_gone()
        await self._keeper.teardown.stop(self._live, "stopped by a call")

    async def rename(self, name: str) -> None:
        self._live.check_not_gone()
        await self._keeper.rename(self._live, name)

    async def change(
        self, *, retention: Retention | None = None, idle_timeout_sec: float | None = None, **limits: float
    ) -> tuple[str, ...]:
        """Change the live box; return the names of the limits that would need a new one, which stay as they are."""
        await self.begin()
        try:
            return await self._keeper.updater.change(self._live, self._session, retention, idle_timeout_sec, limits)
        finally:
            self.end()

    async def renew(self) -> None:
        """Extend the lease from now on; LeaseLost if it has run out."""
        await self.begin()
        try:
            await self._keeper.renew(self._live)
        finally:
            self.end()

    async def release(self) -> None:
        """Give up the lease with the last handle; the box keeps running until its clocks end it."""
        self.close()
        await self._keeper.release(self._live, self._session, unless=lambda live: self._session in live.handles)

    async def export(self, file: str | Path) -> Moved:
        from hutch.keeper.archives.export import export_box  # It loads archives, which few callers need.

        return await export_box(self, file)

    async def destroy(self) -> None:
        """Destroy the box; LeaseLost if another session has it by now."""
        if not await self._keeper.destroy(self.id, unless=lambda live: live.held_by_another(self._session)):
            raise lease_lost(self._live.record)
        self.close()

    def close(self) -> None:
        """Close this handle only; the session keeps its lease until it runs out."""
        if self._open:
            self._open = False
            self._live.remove_handle(self._session)
