"""`LaunchedHutch`: a private server as a child of this process, and its client (B22).

The child reads its standard input, which is a pipe of ours: when this process ends, however it ends, the pipe does
too, and the child goes with its boxes.
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

from hutch.client.heartbeat import Rhythm, Told
from hutch.client.remote import RemoteHutch
from hutch.config import announcement
from hutch.errors import ConfigError
from hutch.logs import log
from hutch.model.status import Condition, Status

READY_SECONDS = 30.0
END_SECONDS = 20.0
LOG_TAIL = 2000
"""Of what a child wrote before it died; the status tells it."""


class LaunchedHutch(RemoteHutch):
    """A client that brings its server along. Entering waits until the child is ready, or has failed."""

    def __init__(
        self, state_dir: Path | None, configuration: Mapping[str, Any], *, session: str = "",
        rhythm: Rhythm | None = None, told: Told | None = None,
    ) -> None:  # fmt: skip
        # Right under /tmp: a Unix socket's path has 108 bytes.
        self._home = Path(tempfile.mkdtemp(prefix="hutch-", dir="/tmp" if os.path.isdir("/tmp") else None))
        self._state = state_dir.absolute() if state_dir is not None else self._home / "s"
        self._child: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        """The child serves, or has failed once."""
        self._failed = ""
        self._settings = _settings(configuration)
        socket = self._home / announcement.SOCKET
        super().__init__(f"unix:{socket}", session=session, rhythm=rhythm, told=told, expected=True)

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
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep(), name="hutch-launch")

    # --- the child ------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Start it, wait for its end, and start it again with back-off, for ever."""
        rhythm = self._server.life.rhythm
        pause = rhythm.retry_sec
        while True:
            begun = asyncio.get_running_loop().time()
            self._failed = await self._live_once()
            self._ready.set()
            log("client").warning("the private server ended", why=self._failed)
            if asyncio.get_running_loop().time() - begun > rhythm.longest_retry_sec:
                pause = rhythm.retry_sec
            await asyncio.sleep(pause)
            pause = min(pause * 2, rhythm.longest_retry_sec)

    async def _live_once(self) -> str:
        """One child's life; why it ended."""
        # -P: without it Python would import from the working directory first, where a box may have left an hutch.py.
        command = [sys.executable, "-P", "-m", "hutch.cli.main", "serve", "--private", "--host", "", "--socket",
                   str(self._home / announcement.SOCKET)]  # fmt: skip
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
                self._failed = ""
                self._ready.set()
        code = await self._child.wait()
        said = tail.decode(errors="replace").strip()
        return f"the private server ended with {code}" + (f": {said}" if said else "")

    def _environment(self) -> dict[str, str]:
        """The child is a server: whose client this process might be is not its concern."""
        kept = {name: value for name, value in os.environ.items() if name not in ("HUTCH_SERVER", "HUTCH_KEY")}
        return kept | self._settings | {"HUTCH_STATE_DIR": str(self._state), "HUTCH_RUN_DIR": str(self._home / "r")}

    # --- what differs from a server of others -----------------------------------------------------------------

    async def status(self) -> Status:
        self._start()
        told = await super().status()
        if told.state is Condition.UNREACHABLE and self._failed:
            return told.but(reason=self._failed, remedy="look at what it said; it is started again by itself")
        return told

    async def close(self) -> None:
        if self._borrowed:
            return
        await super().close()
        if self._keeping is not None:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping
        if self._child is not None and self._child.returncode is None:
            await _end(self._child)
        await asyncio.to_thread(shutil.rmtree, self._home, ignore_errors=True)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _end(child: asyncio.subprocess.Process) -> None:
    """Gently: it ends its boxes. What takes too long is killed, and its boxes end by their own clocks."""
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


def _settings(configuration: Mapping[str, Any]) -> dict[str, str]:
    """Keyword arguments as the child's environment has them."""
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
