"""`EmbeddedServer`: a server inside a process that embeds Hutch, for other processes on the same state directory."""

import asyncio
import socket

from hutch.keeper.keeper import Keeper
from hutch.logs import log
from hutch.server.handlers.mcp_endpoint import Mounts
from hutch.server.handlers.mcp_hosting import Hostings
from hutch.server.run import unix_server
from hutch.server.service import Service


class EmbeddedServer:
    """Serves one keeper on any number of Unix sockets. Only this user and root may connect; there is no TCP door."""

    def __init__(self, keeper: Keeper) -> None:
        self._service = Service(keeper)
        self._service.hostings = Hostings(self._service)
        self._running: list[tuple[asyncio.Task[None], asyncio.Event]] = []

    def listen(self, listening: socket.socket) -> None:
        """Serve a socket that is bound and listening; it is closed with the server."""
        ending = asyncio.Event()
        task = asyncio.create_task(self._serve(listening, ending), name="hutch-embedded-server")
        self._running.append((task, ending))

    async def _serve(self, listening: socket.socket, ending: asyncio.Event) -> None:
        server = unix_server(self._service, Mounts())
        serving = asyncio.create_task(server.serve([listening]))
        stopping = asyncio.create_task(ending.wait())
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            server.should_exit = True
            await serving
        except Exception as error:  # the task's boundary: other processes lose their server, this one goes on
            log("server").error("the server for other processes ended", error=error)
        finally:
            stopping.cancel()

    async def close(self) -> None:
        """Let requests in flight end, then close every socket."""
        self._service.drain()
        for _, ending in self._running:
            ending.set()
        await asyncio.gather(*(task for task, _ in self._running))
        await self._service.creations.finish(self._service.config.server.drain_sec)
        await self._service.operations.finish()
