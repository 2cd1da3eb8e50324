"""A box's files through the keeper: every operation checks the lease and pins the clocks, then the instance does it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeVar

from hutch.api import Files
from hutch.errors import HutchError
from hutch.model.files import Change, Edited, FileInfo, GrepResult, Matches
from hutch.providers.base import Instance

T = TypeVar("T")


class Guard(Protocol):
    """What a box's handle offers to whoever works on the box."""

    async def begin(self) -> Instance: ...

    def end(self) -> None: ...

    async def failed(self, error: HutchError) -> None: ...


class GuardedFiles:
    """The `Files` protocol over a handle."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def _do(self, work: Callable[[Files], Awaitable[T]]) -> T:
        instance = await self._guard.begin()
        try:
            return await work(instance.files)
        except HutchError as error:
            await self._guard.failed(error)
            raise
        finally:
            self._guard.end()

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        return await self._do(lambda files: files.read(path, offset=offset, limit=limit))

    async def read_text(self, path: str) -> str:
        return await self._do(lambda files: files.read_text(path))

    async def read_lines(self, path: str, *, start: int = 1, count: int = 2000) -> tuple[list[str], bool]:
        return await self._do(lambda files: files.read_lines(path, start=start, count=count))

    async def open(self, path: str, *, offset: int = 0, limit: int | None = None) -> AsyncIterator[bytes]:
        instance = await self._guard.begin()
        try:
            async for piece in instance.files.open(path, offset=offset, limit=limit):
                yield piece
        finally:
            self._guard.end()

    async def write(
        self,
        path: str,
        data: bytes | str | AsyncIterator[bytes],
        *,
        append: bool = False,
        mode: int | None = None,
        sync: bool = False,
        parents: bool = True,
    ) -> FileInfo:
        return await self._do(
            lambda files: files.write(path, data, append=append, mode=mode, sync=sync, parents=parents)
        )

    async def edit(
        self, path: str, old: str | bytes, new: str | bytes, *, replace_all: bool = False, expect: str | None = None
    ) -> Edited:
        return await self._do(lambda files: files.edit(path, old, new, replace_all=replace_all, expect=expect))

    async def digest(self, path: str) -> str:
        return await self._do(lambda files: files.digest(path))

    async def stat(self, path: str) -> FileInfo:
        return await self._do(lambda files: files.stat(path))

    async def exists(self, path: str) -> bool:
        return await self._do(lambda files: files.exists(path))

    async def list(self, path: str = ".") -> list[FileInfo]:
        return await self._do(lambda files: files.list(path))

    async def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        await self._do(lambda files: files.mkdir(path, parents=parents, exist_ok=exist_ok))

    async def move(self, source: str, target: str, *, overwrite: bool = False) -> None:
        await self._do(lambda files: files.move(source, target, overwrite=overwrite))

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> None:
        await self._do(lambda files: files.remove(path, recursive=recursive, missing_ok=missing_ok))

    async def glob(self, pattern: str, *, root: str = ".", limit: int = 10_000) -> Matches:
        return await self._do(lambda files: files.glob(pattern, root=root, limit=limit))

    async def grep(
        self,
        pattern: str,
        *,
        root: str = ".",
        glob: str | None = None,
        ignore_case: bool = False,
        limit: int = 1000,
        timeout_sec: float = 10.0,
    ) -> GrepResult:
        return await self._do(
            lambda files: files.grep(
                pattern, root=root, glob=glob, ignore_case=ignore_case, limit=limit, timeout_sec=timeout_sec
            )
        )

    async def watch(self, path: str = ".", *, recursive: bool = True) -> AsyncIterator[Change]:
        instance = await self._guard.begin()
        try:
            async for change in instance.files.watch(path, recursive=recursive):
                yield change
        finally:
            self._guard.end()

    async def copy_in(self, source: str | Path, target: str) -> int:
        return await self._do(lambda files: files.copy_in(source, target))

    async def copy_out(self, source: str, target: str | Path) -> int:
        return await self._do(lambda files: files.copy_out(source, target))
