"""A watch over HTTP: lines of changes. When the connection is lost and found again, an `overflow` says that some may
have been missed."""

import asyncio
from collections import deque
from typing import Any, Self

from hutch.client.handle import Handle
from hutch.client.http import Broken
from hutch.client.requests import NDJSON, answered, answered_plain
from hutch.errors import HutchError
from hutch.model.files import Change


class RemoteWatch:
    """Changes, from the moment it is entered or first awaited; cancelling one wait, as a timeout does, loses none."""

    def __init__(self, handle: Handle, path: str, *, recursive: bool) -> None:
        self._handle = handle
        self._path = path
        self._recursive = recursive
        self._changes: deque[Change] = deque()
        self._reading: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._failed: Exception | None = None
        self._in_place = False
        self._closed = False

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        await self._begin()
        while not self._changes:
            if self._failed is not None:
                raise self._failed
            if self._reading is None or self._reading.done():
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._changes.popleft()

    async def aclose(self) -> None:
        self._closed = True
        self._changes.clear()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})

    async def _begin(self) -> None:
        if self._closed:
            raise StopAsyncIteration
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name="hutch-watch")
            self._reading.add_done_callback(lambda _: self._news.set())
        while not self._in_place:
            if self._failed is not None:
                raise self._failed
            self._news.clear()
            await self._news.wait()

    async def _read(self) -> None:
        """Until the server says that it is over; a lost connection is not."""
        life = self._handle.server.life
        try:
            while True:
                try:
                    await self._read_once()
                    return
                except Broken:
                    if not await life.there(life.rhythm.patience_sec):
                        raise
        except HutchError as error:
            self._failed = error

    async def _read_once(self) -> None:
        where: dict[str, Any] = {"path": self._path, "recursive": self._recursive}
        async with self._handle.stream("GET", "/files/watch", accept=NDJSON, **where) as response:
            rest = b""
            async for piece in response.pieces():
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    self._take(answered(line, dict[str, Any]))
                self._news.set()

    def _take(self, told: dict[str, Any]) -> None:
        if "error" in told:
            raise HutchError.of(told["error"])
        if "watching" in told:
            if self._in_place:
                self._changes.append(Change(path=self._path, kind="overflow"))
            self._in_place = True
        else:
            self._changes.append(answered_plain(told, Change))
