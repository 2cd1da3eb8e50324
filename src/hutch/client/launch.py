"""`LaunchedHutch`: a private server as a child of this process, and its client.

The child reads its standard input, which is a pipe of ours. When this process ends for any reason, the pipe closes, and
the child ends with its boxes.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hutch.client.remote import RemoteHutch
from hutch.client.transport.heartbeat import ConnectionListener, Rhythm
from hutch.config import announcement
from hutch.errors import ConfigError
from hutch.logs import log
from hutch.model.status import Condition, Status

READY_SECONDS = 30.0
END_SECONDS = 20.0
LOG_TAIL = 2000
"""Most bytes of the child's last output that the status shows after it died."""


class LaunchedHutch(RemoteHutch):
    """A client that starts its own server. Entering waits until the child is ready or has failed."""

    def __init__(
        self, state_dir: Path | None, configuration: Mapping[str, Any], *, session: str = "",
        rhythm: Rhythm | None = None, on_change: ConnectionListener | None = None,
    ) -> None:  # fmt: skip
        # Directly under /tmp, because the path of a Unix socket has at most 108 bytes.
        self._runtime_dir = Path(tempfile.mkdtemp(prefix="hutch-", dir="/tmp" if os.path.isdir("/tmp") else None))
        self._state_dir = state_dir.absolute() if state_dir is not None else self._runtime_dir / "s"
        self._child: asyncio.subprocess.Process | None = None
        self._restart_task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        """Set when the child serves or has failed once."""
        self._failure = ""
        self._settings = _environment_settings(configuration)
        socket = self._runtime_dir / announcement.SOCKET
        super().__init__(f"unix:{socket}", session=session, rhythm=rhythm, on_change=on_change, expected=True)

    async def __aenter__(self) -> Self:
        self._start()
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_SECONDS):
                await self._ready.wait()
        return self

    async def _ask(self, kind: type[Any], method: str, path: str, /, **options: Any) -> Any:
        self._start()
        await self._ready.wait()
        return await super()._ask(kind, method, path, **options)

    def _start(self) -> None:
        if self._restart_task is None:
            self._restart_task = asyncio.create_task(self._keep_running(), name="hutch-launch")

    # --- the child ------------------------------------------------------------------------------------------

    async def _keep_running(self) -> None:
        """Start the child, wait for its end, and start it again with back-off, without end."""
        rhythm = self._server.heartbeat.rhythm
        pause = rhythm.retry_sec
        while True:
            begun = asyncio.get_running_loop().time()
            self._failure = await self._run_child()
            self._ready.set()
            log("client").warning("the private server ended", why=self._failure)
            if asyncio.get_running_loop().time() - begun > rhythm.max_retry_sec:
                pause = rhythm.retry_sec
            await asyncio.sleep(pause)
            pause = min(pause * 2, rhythm.max_retry_sec)

    async def _run_child(self) -> str:
        """Run one child to its end. Return why it ended."""
        # Without -P Python imports from the working directory first, where a box may have left a hutch.py.
        command = [sys.executable, "-P", "-m", "hutch.cli.main", "serve", "--private", "--host", "", "--socket",
                   str(self._runtime_dir / announcement.SOCKET)]  # fmt: skip
        try:
            self._child = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE, env=self._environment(), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return f"it could not be started: {error}"
        assert self._child.stderr is not None
        tail = b""
        while line := await self._child.stderr.read(4096):
            tail = (tail + line)[-LOG_TAIL:]
            if b"listening on" in tail and not self._ready.is_set():
                self._failure = ""
                self._ready.set()
        code = await self._child.wait()
        said = tail.decode(errors="replace").strip()
        return f"the private server ended with {code}" + (f": {said}" if said else "")

    def _environment(self) -> dict[str, str]:
        """Return the child's environment without the settings that would make it a client of another server."""
        kept = {name: value for name, value in os.environ.items() if name not in ("HUTCH_SERVER", "HUTCH_KEY")}
        return (
            kept
            | self._settings
            | {"HUTCH_STATE_DIR": str(self._state_dir), "HUTCH_RUN_DIR": str(self._runtime_dir / "r")}
        )

    # --- differences from a client of a foreign server ---------------------------------------------------

    async def status(self) -> Status:
        self._start()
        status = await super().status()
        if status.state is Condition.UNREACHABLE and self._failure:
            return status.but(reason=self._failure, remedy="look at what it said; it is started again by itself")
        return status

    async def close(self) -> None:
        if self._is_view:
            return
        await super().close()
        if self._restart_task is not None:
            self._restart_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._restart_task
        if self._child is not None and self._child.returncode is None:
            await _end(self._child)
        await asyncio.to_thread(shutil.rmtree, self._runtime_dir, ignore_errors=True)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _end(child: asyncio.subprocess.Process) -> None:
    """End the child gently, so that it ends its boxes. If it takes too long it is killed, and its boxes time out."""
    if child.stdin is not None:
        child.stdin.close()
    try:
        async with asyncio.timeout(END_SECONDS):
            if child.stderr is not None:
                while await child.stderr.read(4096):
                    pass
            await child.wait()
    except TimeoutError:
        child.kill()
        await child.wait()


def _environment_settings(configuration: Mapping[str, Any]) -> dict[str, str]:
    """Return the keyword arguments as environment variables for the child."""
    settings: dict[str, str] = {}
    for name, value in configuration.items():
        if value is None:
            continue
        if isinstance(value, list | tuple):
            text = os.pathsep.join(str(each) for each in value)
        elif isinstance(value, str | int | float | os.PathLike):
            text = str(value).lower() if isinstance(value, bool) else str(value)
        else:
            raise ConfigError(f"{name} cannot be handed to a private server", remedy="write it into hutch.toml")
        settings["HUTCH_CONFIG" if name == "config" else f"HUTCH_{name.upper()}"] = text
    return settings
