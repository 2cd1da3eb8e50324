"""`RemoteBox`: the `Box` protocol over HTTP. The server holds the lease, and this client keeps it alive."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hutch.client import transfer
from hutch.client.code import RemoteKernels
from hutch.client.files import RemoteFiles
from hutch.client.handle import Handle
from hutch.client.jobs import RemoteJob, RemoteStream, WireAttempt, WireResult, start_job
from hutch.client.transport.requests import HeldLease, Repeat, Server, convert_answer, decode_answer
from hutch.errors import LeaseLost, NotFound, Timeout
from hutch.model.arguments import checked_command
from hutch.model.boxes import BoxInfo, Moved, PortInfo, Preview, State
from hutch.model.code import CodeResult
from hutch.model.layers import Attempt, Checkpoint, Diff, Forks, Merge, Rollback
from hutch.model.results import JobInfo, Result, Usage
from hutch.model.spec import Adjustment, EffectiveSpec, Retention

if TYPE_CHECKING:
    from hutch.client.ports import RemoteConnection

T = TypeVar("T")
FIRST_READY_PAUSE = 0.02
LONGEST_READY_PAUSE = 0.5
"""Seconds between questions whether a box has been created."""


class RemoteBox:
    """One session's handle on one box. With `observing` it has no lease and may only read; an `admin` needs none."""

    def __init__(
        self,
        server: Server,
        session: str,
        info: BoxInfo,
        notes: tuple[str, ...] = (),
        *,
        observing: bool = False,
        admin: bool = False,
        grant: int = 0,
        on_ready: "Callable[[RemoteBox], Awaitable[None]] | None" = None,
    ) -> None:
        """`on_ready` is what remains to be done when a box that is still being created runs."""
        self.notes = notes
        self._info = info
        self._on_ready = on_ready
        lease = None if observing or admin else info.lease
        if not (observing or admin) and (lease is None or lease.holder != session):
            raise LeaseLost(f"box {info.id} was taken over by another session", remedy="attach to it again")
        self._handle = Handle(server, session, info.id, lease, admin=admin)
        self.files = RemoteFiles(self._handle, lambda: self.spec)
        self.kernels = RemoteKernels(self._handle, checked_name)
        if lease is not None:
            server.add_handle(session, info.id, lease, grant)

    @property
    def id(self) -> str:
        return self._info.id

    @property
    def spec(self) -> EffectiveSpec:
        return self._info.spec

    @property
    def adjustments(self) -> tuple[Adjustment, ...]:
        return self._info.spec.adjustments

    # --- commands -------------------------------------------------------------------------------------------

    async def exec(
        self, command: str | Sequence[str], *, cwd: str | None = None, env: dict[str, str] | None = None,
        stdin: bytes | str | None = None, timeout: float | None = None, user: str | None = None,
        keep_output: int = 1 << 20,
    ) -> Result:  # fmt: skip
        self._handle.refuse_if_observing("exec")
        body = _command(command, cwd, env, timeout, user) | _stdin(stdin) | {"keep_output": keep_output}
        data, _ = await self._handle.run_once("/exec", body)
        return decode_answer(data, WireResult).result()

    def stream(
        self, command: str | Sequence[str], *, cwd: str | None = None, env: dict[str, str] | None = None,
        stdin: bytes | str | None = None, timeout: float | None = None, user: str | None = None,
    ) -> RemoteStream:  # fmt: skip
        self._handle.refuse_if_observing("stream")
        body = _command(command, cwd, env, timeout, user) | _stdin(stdin) | {"attended": True}
        return RemoteStream(self._handle, body)

    async def start(
        self, command: str | Sequence[str], *, cwd: str | None = None, env: dict[str, str] | None = None,
        timeout: float | None = None, user: str | None = None, pty: bool = False, rows: int = 24, cols: int = 80,
        name: str = "", follow: bool = False,
    ) -> RemoteJob:  # fmt: skip
        self._handle.refuse_if_observing("start")
        body = _command(command, cwd, env, timeout, user)
        body |= {"pty": pty, "rows": rows, "cols": cols, "name": name, "follow": follow}
        job, _ = await start_job(self._handle, body)
        return job

    async def jobs(self) -> tuple[JobInfo, ...]:
        return await self._handle.ask(tuple[JobInfo, ...], "GET", "/jobs", part="jobs")

    async def job(self, job_id: str) -> RemoteJob:
        found = await self._handle.ask(JobInfo, "GET", f"/jobs/{checked_name(job_id, 'job')}")
        return RemoteJob(self._handle, found.id)

    async def forget(self, job_id: str) -> None:
        self._handle.refuse_if_observing("forget")
        await self._handle.ask(type(None), "DELETE", f"/jobs/{checked_name(job_id, 'job')}", repeat=Repeat.UNSENT)

    # --- states of its files --------------------------------------------------------------------------------

    async def checkpoint(self, name: str = "", *, kill: bool = False) -> Checkpoint:
        return await self._once(Checkpoint, "checkpoints", {"name": name, "kill": kill})

    async def checkpoints(self) -> tuple[Checkpoint, ...]:
        return await self._handle.ask(tuple[Checkpoint, ...], "GET", "/checkpoints", part="checkpoints")

    async def delete_checkpoint(self, checkpoint: str) -> None:
        self._handle.refuse_if_observing("delete a checkpoint")
        path = f"/checkpoints/{checked_name(checkpoint, 'checkpoint')}"
        await self._handle.ask(type(None), "DELETE", path, repeat=Repeat.UNSENT)

    async def rollback(self, checkpoint: str, *, kill: bool = False) -> Rollback:
        return await self._once(Rollback, "rollback", {"checkpoint": checkpoint, "kill": kill})

    async def undo(self, steps: int = 1, *, kill: bool = False) -> Rollback:
        return await self._once(Rollback, "undo", {"steps": steps, "kill": kill})

    async def diff(self, start: str = "", end: str = "", *, text: bool = False) -> Diff:
        return await self._handle.ask(Diff, "GET", "/diff", start=start, end=end, text=text)

    async def fork(
        self, count: int = 1, *, checkpoint: str = "", kernel: bool = False
    ) -> "tuple[RemoteBox, ...]":  # fmt: skip
        made = await self._once(Forks, "fork", {"count": count, "checkpoint": checkpoint, "kernel": kernel})
        return tuple(RemoteBox(self._handle.server, self._handle.session, info) for info in made.boxes)

    async def merge(self, fork: str) -> Merge:
        return await self._once(Merge, "merge", {"fork": fork})

    async def attempt(
        self, command: str | Sequence[str], *, check: str | Sequence[str] | None = None, cwd: str | None = None,
        env: dict[str, str] | None = None, timeout: float | None = None, user: str | None = None, kill: bool = False,
    ) -> Attempt:  # fmt: skip
        body = _command(command, cwd, env, timeout, user) | {"kill": kill}
        if check is not None:
            body["check"] = checked_command(check)
        return (await self._once(WireAttempt, "attempt", body)).attempt()

    async def _once(self, kind: type[T], op: str, body: dict[str, Any]) -> T:
        """Ask for a change that must not happen twice."""
        self._handle.refuse_if_observing(op)
        data, _ = await self._handle.run_once(f"/{op}", body)
        return decode_answer(data, kind)

    # --- ports ----------------------------------------------------------------------------------------------

    async def connect(self, port: int) -> "RemoteConnection":
        from hutch.client.ports import RemoteConnection  # It needs `websockets`, which few callers do.

        self._handle.refuse_if_observing("connect")
        return await RemoteConnection.open(self._handle, port)

    async def ports(self, *, wait: float = 0.0) -> tuple[PortInfo, ...]:
        return await self._handle.ask(tuple[PortInfo, ...], "GET", "/ports", part="ports", wait=wait or None)

    async def url(self, port: int, *, public: bool = False, ttl_sec: float = 3600.0) -> Preview:
        self._handle.refuse_if_observing("url")
        body = {"public": public, "ttl_sec": ttl_sec}
        return await self._handle.ask(Preview, "POST", f"/ports/{port}/url", body=body, repeat=Repeat.UNSENT)

    async def previews(self) -> tuple[Preview, ...]:
        self._handle.refuse_if_observing("previews")
        return await self._handle.ask(tuple[Preview, ...], "GET", "/previews", part="previews")

    async def revoke(self, preview_id: str) -> None:
        self._handle.refuse_if_observing("revoke")
        name = checked_name(preview_id, "preview")
        await self._handle.ask(type(None), "DELETE", f"/previews/{name}", repeat=Repeat.UNSENT)

    # --- code -----------------------------------------------------------------------------------------------

    async def python(
        self, code: str, *, timeout: float | None = None, env: dict[str, str] | None = None, kernel: str = ""
    ) -> CodeResult:
        return await self.kernels.run("python", code, timeout=timeout, env=env, kernel=kernel)

    async def code(
        self, language: str, code: str, *, timeout: float | None = None, env: dict[str, str] | None = None,
        kernel: str = "",
    ) -> CodeResult:  # fmt: skip
        return await self.kernels.run(language, code, timeout=timeout, env=env, kernel=kernel)

    # --- the box --------------------------------------------------------------------------------------------

    async def usage(self) -> Usage:
        return await self._handle.ask(Usage, "GET", "/usage")

    async def info(self) -> BoxInfo:
        self._info = await self._handle.ask_as(self._looking, BoxInfo, "GET")
        return self._info

    @property
    def _looking(self) -> dict[str, str]:
        return self._handle.credentials() if self._handle.admin else {"Hutch-Session": self._handle.session}

    async def ready(self, timeout_sec: float | None = None) -> None:
        self._handle.refuse_if_observing("ready")
        pause = FIRST_READY_PAUSE
        try:
            async with asyncio.timeout(timeout_sec):
                while await self.state() is State.CREATING:
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, LONGEST_READY_PAUSE)
        except TimeoutError as error:
            raise Timeout(f"box {self.id} is still being created", remedy="wait longer") from error
        if self._on_ready is not None:
            on_ready, self._on_ready = self._on_ready, None
            await on_ready(self)

    async def mark_created(self) -> None:
        """Notify the server that the `created` hooks of this program have succeeded."""
        self._info = await self._handle.ask(BoxInfo, "POST", "/created")

    @property
    def created_hooks_done(self) -> bool:
        return self._info.created_hooks_done

    async def move_to(self, template: str, /, *, kind: str = "", **values: object) -> None:
        self._handle.refuse_if_observing("move_to")
        given = {name: None if value is None else str(value) for name, value in values.items()}
        body = {"template": template, "kind": kind, "values": given}
        self._info = await self._handle.ask(BoxInfo, "POST", "/scope", body=body)

    async def state(self) -> State:
        return (await self.info()).state

    async def pause(self) -> None:
        self._handle.refuse_if_observing("pause")
        self._info = await self._handle.ask(BoxInfo, "POST", "/pause")

    async def resume(self) -> None:
        self._handle.refuse_if_observing("resume")
        self._info = await self._handle.ask(BoxInfo, "POST", "/resume")

    async def stop(self) -> None:
        self._handle.refuse_if_observing("stop")
        self._info = await self._handle.ask(BoxInfo, "POST", "/stop")

    async def rename(self, name: str) -> None:
        self._handle.refuse_if_observing("rename")
        await self._change({"name": name})

    async def change(
        self, *, retention: Retention | None = None, idle_timeout_sec: float | None = None, **limits: float
    ) -> tuple[str, ...]:
        self._handle.refuse_if_observing("change")
        asked = {"retention": retention, "idle_timeout_sec": idle_timeout_sec, "limits": limits}
        return await self._change({name: value for name, value in asked.items() if value not in (None, {})})

    async def _change(self, body: dict[str, Any]) -> tuple[str, ...]:
        answer = await self._handle.ask(dict[str, Any], "PATCH", body=body)
        self._info = convert_answer(answer["box"], BoxInfo)
        return tuple(answer["refused"])

    async def renew(self) -> None:
        self._handle.refuse_if_observing("renew")
        await self._handle.ask(dict[str, Any], "POST", "/lease", body={"renew": True})

    # --- the end of the handle ------------------------------------------------------------------------------

    async def release(self) -> None:
        """Release the lease with the last handle of this session. The box lives on until its own timeouts."""
        held = self._close()
        if held is not None:
            await self._handle.ask_as(self._looking, dict[str, Any], "DELETE", "/lease", grant=held.grant or None)

    async def export(self, file: str | Path) -> Moved:
        self._handle.refuse_if_observing("export")
        return await transfer.export(self._handle, file)

    async def destroy(self) -> None:
        self._handle.refuse_if_observing("destroy")
        self._close()
        await self._handle.ask_as(self._handle.credentials(), type(None), "DELETE", force=True)
        self._handle.is_destroyed = True

    def _close(self) -> HeldLease | None:
        """Close the handle. Return the lease if this was the session's last handle on the box."""
        if not self._handle.open or self._handle.observing:
            return None
        self._handle.open = False
        if self._handle.admin:
            return None
        return self._handle.server.drop_handle(self._handle.session, self.id)


def _command(
    command: str | Sequence[str], cwd: str | None, env: dict[str, str] | None, timeout: float | None, user: str | None
) -> dict[str, Any]:
    asked = {"command": checked_command(command), "cwd": cwd, "env": env or None, "timeout": timeout, "user": user}
    return {name: value for name, value in asked.items() if value is not None}


def _stdin(given: bytes | str | None) -> dict[str, Any]:
    if given is None:
        return {}
    return {"stdin": given} if isinstance(given, str) else {"stdin_base64": given}


def checked_name(text: str, what: str) -> str:
    """Return the name for use in a path. A text that can be no name raises NotFound without a request."""
    if not text or not (text.isascii() and text.replace("-", "").replace("_", "").replace(".", "").isalnum()):
        raise NotFound(f"there is no {what} {text!r}")
    return text
