"""A watch on the host's side: an iterator of changes that may be entered, waited on with a timeout, and left."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self

from hutch.errors import BoxBroken, Conflict, HutchError
from hutch.guest.protocol import DATA
from hutch.model.files import Change
from hutch.providers.guest_client.answers import checked
from hutch.providers.guest_client.channel import MAX_ROW, Channel, row

KINDS = frozenset({"created", "modified", "attributes", "deleted", "moved_from", "moved_to", "overflow"})


class Watch:
    """Yields changes from the moment it is entered or first awaited, and ends when what is watched is gone.

    Cancelling one wait, as a timeout does, loses nothing: the next wait continues where that one was.
    """

    def __init__(self, begin: Callable[[], Awaitable[Channel]]) -> None:
        self._begin = begin
        self._channel: Channel | None = None
        self._partial = b""
        self._changes: deque[Change] = deque()
        self._ready = False
        self._closed = False

    async def __aenter__(self) -> Self:
        await self._in_place()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        await self._in_place()
        while not self._changes:
            await self._receive()
        return self._changes.popleft()

    async def aclose(self) -> None:
        self._closed = True
        self._changes.clear()
        if self._channel is not None:
            self._channel.abandon()

    def __del__(self) -> None:
        # After a `break` the guest would go on watching for nobody. The channel is safe to use only from the loop's
        # own thread, and the garbage collector may run in another.
        if self._channel is not None and not self._closed and not self._channel.done:
            with suppress(RuntimeError):  # the loop may be closed, and the link with it
                self._loop.call_soon_threadsafe(self._channel.abandon)

    async def _in_place(self) -> None:
        if self._closed:
            raise StopAsyncIteration
        if self._channel is None:
            self._loop = asyncio.get_running_loop()
            self._channel = await self._begin()
        while not self._ready:
            await self._receive()

    async def _receive(self) -> None:
        assert self._channel is not None
        try:
            kind, content = await anext(self._channel)
        except StopAsyncIteration:
            self._closed = True
            raise
        except Conflict as error:
            if not error.details.get("switched"):
                self._closed = True
                raise
            # A checkpoint or a rollback gave the box another view of its files. What happened meanwhile is not known.
            self._channel, self._partial, self._ready = None, b"", False
            self._changes.append(Change(path="", kind="overflow"))
            await self._in_place()
            return
        except HutchError as error:
            self._closed = True
            error.op = error.op or "files.watch"
            raise
        if kind != DATA:
            raise BoxBroken(f"the guest sent a frame of kind {kind} in a watch")
        *lines, self._partial = (self._partial + content).split(b"\n")
        if len(self._partial) > MAX_ROW:
            raise BoxBroken("the guest sent an endless line")
        for line in lines:
            self._take(row(line))

    def _take(self, fields: object) -> None:
        change = checked(fields, Change)
        if change.kind == "ready":
            self._ready = True
        elif change.kind in KINDS:
            self._changes.append(change)
        else:
            raise BoxBroken(f"the guest tells of a change of unknown kind {change.kind!r}")
