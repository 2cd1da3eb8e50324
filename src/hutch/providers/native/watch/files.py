"""File operations on a box whose disk usage a watchdog limits.

The guest itself performs them, and a watchdog cannot end the guest. So an operation that would add to the disk of a box
over its limit is refused, and a stream is cut off when its box gets there.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from hutch.errors import HutchError
from hutch.model.files import Edited, FileInfo
from hutch.providers.guest_client.answers import Copied
from hutch.providers.guest_client.files import GuestFiles
from hutch.providers.guest_client.link import Link


class Watch(Protocol):
    """The part of the disk watchdog that file operations use."""

    async def admit(self, op: str) -> None:
        """Raise an error if nothing may be added."""

    def obstacle(self, op: str) -> HutchError | None:
        """The same error, from the last count, without counting again."""

    def note_activity(self) -> None:
        """Have the disk usage counted soon, because something changes."""


class WatchedFiles(GuestFiles):
    """Operations that change something notify the watchdog, before and after."""

    def __init__(self, link: Callable[[], Awaitable[Link]], most: Callable[[str], int], watch: Watch) -> None:
        super().__init__(link, most)
        self._watch = watch
        self.writing = 0
        """The number of operations under way."""

    async def write(
        self, path: str, data: bytes | str | AsyncIterator[bytes], *, append: bool = False, mode: int | None = None,
        sync: bool = False, parents: bool = True,
    ) -> FileInfo:  # fmt: skip
        content = data if isinstance(data, bytes | str | bytearray | memoryview) else self._while_room(data)
        async with self._adding("files.write"):
            return await super().write(path, content, append=append, mode=mode, sync=sync, parents=parents)

    async def overwrite(
        self, path: str, data: AsyncIterator[bytes], *, prefix: str = "", attributes: dict[str, str] | None = None
    ) -> FileInfo:
        async with self._adding("files.write"):
            return await super().overwrite(path, self._while_room(data), prefix=prefix, attributes=attributes)

    async def edit(
        self, path: str, old: str | bytes, new: str | bytes, *, replace_all: bool = False, expect: str | None = None
    ) -> Edited:
        async with self._adding("files.edit"):
            return await super().edit(path, old, new, replace_all=replace_all, expect=expect)

    async def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        async with self._adding("files.mkdir"):
            await super().mkdir(path, parents=parents, exist_ok=exist_ok)

    async def copy_in(self, source: str | Path, target: str) -> int:
        async with self._adding("files.copy_in"):
            return await super().copy_in(source, target)

    async def unpack(self, pieces: AsyncIterator[bytes], target: str, into: str) -> Copied:
        async with self._adding("files.copy_in"):
            return await super().unpack(self._while_room(pieces), target, into)

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> None:
        try:
            await super().remove(path, recursive=recursive, missing_ok=missing_ok)
        finally:
            self._watch.note_activity()

    @asynccontextmanager
    async def _adding(self, op: str) -> AsyncIterator[None]:
        await self._watch.admit(op)
        self.writing += 1
        self._watch.note_activity()
        try:
            yield
        finally:
            self.writing -= 1
            self._watch.note_activity()

    async def _while_room(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            if error := self._watch.obstacle("files.write"):
                raise error
            yield piece
