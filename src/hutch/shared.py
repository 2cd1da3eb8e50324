"""`SharedHutch`: processes that embed Hutch on one state directory share the boxes of their conversations.

Each process keeps the boxes that it created, and other processes use them through it: every process listens on a Unix
socket below the run directory, named after its keeper, and loads a server when the first other process connects. When
a process ends, one of those that were connected listens on its socket path instead and takes over its boxes as they
are asked for, so a handle only has to reconnect. If a third process adopted the box before, the handle follows it
there.
"""

import asyncio
import importlib.util
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hutch import api
from hutch.client.remote import RemoteHutch
from hutch.client.transport.heartbeat import Rhythm
from hutch.client.transport.requests import Server
from hutch.errors import BoxBusy, HeldElsewhere
from hutch.keeper.access.leases import PROCESS_SESSION_PREFIX
from hutch.keeper.embedded import Hutch as EmbeddedHutch
from hutch.keeper.keeper import Keeper
from hutch.keeper.takeover.liveness import KeeperLock
from hutch.logs import log
from hutch.model.ids import BoxId

if TYPE_CHECKING:
    from hutch.server.run import EmbeddedServer

SUCCESSION_SECONDS = 0.02
"""Interval between checks whether a lost process has ended, so that its socket path can be taken over."""
_RHYTHM = Rhythm(retry_sec=0.05, max_retry_sec=1.0)
_ATTEMPTS = 3
"""Attempts to find a box that changes from process to process meanwhile."""


class SharedHutch(EmbeddedHutch):
    """The embedded Hutch, which also reaches the boxes of other processes on its state directory."""

    def __init__(self, *, keeper: Keeper) -> None:
        super().__init__(keeper=keeper)
        self._sockets = Sockets(keeper)
        self._others: dict[str, OtherProcess] = {}
        """The processes whose boxes this one uses, by the id of their keeper."""

    async def _start(self) -> None:
        if not self._started:
            await super()._start()
            self._sockets.open()

    @asynccontextmanager
    async def box_for(
        self, template: str, /, *, kind: str = "", spec: Mapping[str, Any] | None = None, **values: object
    ) -> AsyncIterator[Any]:
        """Find or create the box of this conversation, whichever process keeps it."""
        async with AsyncExitStack() as stack:
            hutch: EmbeddedHutch | RemoteHutch = self
            attempts = _ATTEMPTS
            while True:
                try:
                    if isinstance(hutch, EmbeddedHutch):
                        found: Any = EmbeddedHutch.box_for(hutch, template, kind=kind, spec=spec, **values)
                    else:
                        found = hutch.box_for(template, kind=kind, spec=spec, **values)
                    box: api.Box = await stack.enter_async_context(found)
                    break
                except (HeldElsewhere, BoxBusy) as error:
                    session = await self._joint_session(error)
                    attempts -= 1
                    if not attempts or (isinstance(error, BoxBusy) and session == hutch.session):
                        raise
                    hutch = self._other(error) if isinstance(error, HeldElsewhere) else hutch
                    hutch = hutch.for_session(session)
            yield box

    async def attach(self, box_id: str, *, takeover: bool = False) -> Any:
        try:
            return await super().attach(box_id, takeover=takeover)
        except HeldElsewhere as elsewhere:
            return await self._other(elsewhere).attach(box_id, takeover=takeover)

    async def switch(self, box_id: str, *, takeover: bool = False) -> Any:
        try:
            return await super().switch(box_id, takeover=takeover)
        except HeldElsewhere as elsewhere:
            return await self._other(elsewhere).switch(box_id, takeover=takeover)

    async def observe(self, box_id: str) -> Any:
        try:
            return await super().observe(box_id)
        except HeldElsewhere as elsewhere:
            return await self._other(elsewhere).observe(box_id)

    async def administer(self, box_id: str) -> Any:
        try:
            return await super().administer(box_id)
        except HeldElsewhere as elsewhere:
            return await self._other(elsewhere).administer(box_id)

    async def destroy(self, box_id: str, *, force: bool = False) -> None:
        try:
            await super().destroy(box_id, force=force)
        except HeldElsewhere as elsewhere:
            await self._other(elsewhere).destroy(box_id, force=force)

    async def close(self) -> None:
        if self._is_view:
            return
        for other in self._others.values():
            await other.close()
        self._others.clear()
        await self._sockets.drain()
        await super().close()
        # Last, so that no process takes over while this one still keeps its boxes.
        self._sockets.close()

    def _other(self, elsewhere: HeldElsewhere) -> RemoteHutch:
        """Return a client of the process that keeps the box, for this session."""
        keeper = str(elsewhere.details.get("keeper", ""))
        other = self._others.get(keeper)
        if other is None:
            path = self._sockets.path(keeper)
            if importlib.util.find_spec("uvicorn") is None:
                raise HeldElsewhere(
                    elsewhere.message, details=elsewhere.details,
                    remedy="pip install 'hutch[server]': processes then use each other's boxes",
                ) from elsewhere  # fmt: skip
            if not path.exists():
                raise elsewhere  # a keeper that serves no others: a command of `hutch`, or one on another machine
            other = self._others[keeper] = OtherProcess(keeper, self._sockets, lambda moved: self._other(moved).server)
        return other.hutch.for_session(self.session)

    async def _joint_session(self, error: HeldElsewhere | BoxBusy) -> str:
        """Return the session for a conversation's box that another process holds.

        Two unnamed sessions count as one here: two workers of a program may answer two messages of one chat at once,
        as two tasks of one process may.
        """
        record = await self._keeper.store.get(BoxId(str(error.details.get("box", ""))))
        # The lease may have ended with the process that kept the box before, and other handles may go on with it.
        lease = record and (record.lease or record.left_lease)
        holder = lease.holder if lease else ""
        unnamed = holder.startswith(PROCESS_SESSION_PREFIX) and self.session.startswith(PROCESS_SESSION_PREFIX)
        return holder if unnamed else self.session


class Sockets:
    """The sockets on which other processes reach this one: its own, and those of ended processes that it replaced."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._home = keeper.config.run_dir / "processes"
        self._listening: dict[Path, socket.socket] = {}
        self._claims: list[KeeperLock] = []
        self._server: EmbeddedServer | None = None

    def path(self, keeper: str) -> Path:
        return self._home / keeper

    def open(self) -> None:
        """Listen for other processes, and remove the sockets of ended ones."""
        self.take_over(self._keeper.id)
        for path in self._home.iterdir():
            if path.is_socket() and path not in self._listening:
                # Under its lock: another process may be about to take over the same path.
                with suppress(BlockingIOError):
                    claim = KeeperLock(self._home, path.name, wait=False)
                    path.unlink(missing_ok=True)
                    claim.release()

    def take_over(self, keeper: str) -> bool:
        """Listen on that keeper's path; False if another process does."""
        try:
            claim = KeeperLock(self._home, keeper, wait=False)
        except BlockingIOError:
            return False
        self._claims.append(claim)
        path = self.path(keeper)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        path.unlink(missing_ok=True)
        made.bind(str(path))
        path.chmod(0o600)
        made.listen(128)
        self._listening[path] = made
        asyncio.get_running_loop().add_reader(made, self._serve, made)
        return True

    def _serve(self, listening: socket.socket) -> None:
        """Serve the first connection. The server is loaded only now, because most processes never need it."""
        asyncio.get_running_loop().remove_reader(listening)
        from hutch.server.run import EmbeddedServer

        if self._server is None:
            self._server = EmbeddedServer(self._keeper)
        self._server.listen(listening)

    async def has_ended(self, keeper: str) -> bool:
        return not await self._keeper.liveness.alive(keeper)

    async def drain(self) -> None:
        """Let the requests of other processes end, and accept no more."""
        loop = asyncio.get_running_loop()
        for listening in self._listening.values():
            loop.remove_reader(listening)
        if self._server is not None:
            await self._server.close()

    def close(self) -> None:
        for path, listening in self._listening.items():
            path.unlink(missing_ok=True)
            listening.close()
        for claim in self._claims:
            claim.release()
        self._listening.clear()
        self._claims.clear()


class OtherProcess:
    """Another process whose boxes this one uses; when it ends, this one may listen on its path instead."""

    def __init__(self, keeper: str, sockets: Sockets, elsewhere: Callable[[HeldElsewhere], Server]) -> None:
        self._keeper = keeper
        self._sockets = sockets
        self._succession: asyncio.Task[None] | None = None
        path = sockets.path(keeper)
        self.hutch = RemoteHutch(
            f"unix:{path}", rhythm=_RHYTHM, on_change=self._changed, expected=True, elsewhere=elsewhere
        )

    def _changed(self, there: bool, why: str) -> None:
        if there:
            self._end_succession()
        elif self._succession is None:
            self._succession = asyncio.create_task(self._succeed(), name="hutch-succession")

    async def _succeed(self) -> None:
        """Try, until the connection is back, to listen on the path of the process once it has ended."""
        while True:
            if await self._sockets.has_ended(self._keeper) and self._sockets.take_over(self._keeper):
                log("shared").info("took the place of a process that ended", keeper=self._keeper)
                return
            await asyncio.sleep(SUCCESSION_SECONDS)

    def _end_succession(self) -> None:
        if self._succession is not None:
            self._succession.cancel()
            self._succession = None

    async def close(self) -> None:
        self._end_succession()
        await self.hutch.close()
