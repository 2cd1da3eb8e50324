"""`RemoteWatch`: changes of files over HTTP. After a lost connection an `overflow` says that some may be missing."""

import asyncio
from collections import deque
from typing import Any, Self

from hutch.client.handle import Handle
from hutch.client.transport.http import ConnectionBroken
from hutch.client.transport.requests import NDJSON, convert_answer, decode_answer
from hutch.errors import HutchError
from hutch.model.files import Change


class RemoteWatch:
    """Changes from the moment it is entered or first awaited. A cancelled wait loses none."""

    def __init__(self, handle: Handle, path: str, *, recursive: bool) -> None:
        self._handle = handle
        self._path = path
        self._recursive = recursive
        self._changes: deque[Change] = deque()
        self._reading: asyncio.Task[None] | None = None
        self._wakeup = asyncio.Event()
        self._error: Exception | None = None
        self._established = False
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
            if self._error is not None:
                raise self._error
            if self._reading is None or self._reading.done():
                raise StopAsyncIteration
            self._wakeup.clear()
            await self._wakeup.wait()
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
            self._reading.add_done_callback(lambda _: self._wakeup.set())
        while not self._established:
            if self._error is not None:
                raise self._error
            self._wakeup.clear()
            await self._wakeup.wait()

    async def _read(self) -> None:
        """Read until the server ends the watch. A lost connection is opened again."""
        try:
            while True:
                try:
                    await self._read_once()
                    return
                except ConnectionBroken as broken:
                    await self._handle.recover(broken)
        except HutchError as error:
            self._error = error

    async def _read_once(self) -> None:
        where: dict[str, Any] = {"path": self._path, "recursive": self._recursive}
        async with self._handle.stream("GET", "/files/watch", accept=NDJSON, **where) as response:
            rest = b""
            async for piece in response.pieces():
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    self._handle_message(decode_answer(line, dict[str, Any]))
                self._wakeup.set()

    def _handle_message(self, message: dict[str, Any]) -> None:
        if "error" in message:
            raise HutchError.of(message["error"])
        if "watching" in message:
            if self._established:
                self._changes.append(Change(path=self._path, kind="overflow"))
            self._established = True
        else:
            self._changes.append(convert_answer(message, Change))
