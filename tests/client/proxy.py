"""A wire between client and server that can be cut, held, or made to swallow answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


class Proxy:
    """Listens on a Unix socket and carries everything to another."""

    def __init__(self, target: str, path: Path) -> None:
        self.path = path
        self.url = f"unix:{path}"
        self.accepted = 0
        self.swallow = asyncio.Event()
        """Set: what the server says is thrown away, and the wire cut, at its next word."""
        self.swallowed = asyncio.Event()
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._carry, str(self.path))

    async def refuse(self) -> None:
        """Nobody is there any more."""
        assert self._server is not None
        self._server.close()
        self.path.unlink(missing_ok=True)
        self.cut()

    def cut(self) -> None:
        """Every connection breaks."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        there, back = await asyncio.open_unix_connection(self._target)
        self._writers |= {writer, back}
        for task in (self._pump(reader, back, answers=False), self._pump(there, writer, answers=True)):
            running = asyncio.ensure_future(task)
            self._tasks.add(running)
            running.add_done_callback(self._tasks.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        try:
            while data := await reader.read(65536):
                if answers and self.swallow.is_set() and b"/presence" not in data and not _is_beat(data):
                    self.swallow.clear()
                    self.swallowed.set()
                    self.cut()
                    return
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.path.unlink(missing_ok=True)


def _is_beat(data: bytes) -> bool:
    """The answer to a heartbeat, which is not what a test wants to swallow."""
    return b'{"kept":' in data


@asynccontextmanager
async def proxy(target: str | Path, path: Path) -> AsyncIterator[Proxy]:
    made = Proxy(str(target), path)
    await made.listen()
    try:
        yield made
    finally:
        await made.close()
