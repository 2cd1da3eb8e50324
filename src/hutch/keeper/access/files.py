"""A box's files and watches through the keeper: each operation checks the lease and pins the box first."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from hutch.errors import HutchError, Unsupported
from hutch.keeper.receipts.operations import Operation
from hutch.model.files import Change, Edited, Entry, FileInfo, GrepHit, GrepResult, Matches
from hutch.model.receipts import Detail, Details
from hutch.providers.base import Instance
from hutch.providers.guest_client.answers import Copied
from hutch.providers.guest_client.files import GuestFiles

if TYPE_CHECKING:
    from hutch.api import Files, Watch

T = TypeVar("T")

_ADDING = frozenset({"write", "edit", "mkdir", "copy_in"})
"""Operations that add to the files of a box, and never remove any."""


class Guard(Protocol):
    """What a box's handle offers to its files and jobs."""

    async def begin(self) -> Instance: ...

    def end(self) -> None: ...

    async def failed(self, error: HutchError) -> None: ...

    def operation(self, op: str, details: Details) -> Operation:
        """Begin an operation that leaves a receipt."""

    def check_volumes(self, op: str, *, adds: bool = False) -> int:
        """Raise QuotaExceeded if the volumes of the box are too full for an operation; `adds` if it can only add."""


class GuardedFiles:
    """The `Files` protocol over a handle. Receipts are written except for `stat` and `exists`, which programs poll."""

    def __init__(self, guard: Guard, user: str | None = None) -> None:
        """`user` names another user than the box's own, with whose rights the files are used."""
        self._guard = guard
        self._user = user

    def _of(self, instance: Instance) -> "Files":
        return instance.files if self._user is None else instance.files_as(self._user)

    async def _record(
        self, op: str, work: "Callable[[Files], Awaitable[T]]", changed: tuple[str, ...] | None = None,
        **details: Detail,
    ) -> T:  # fmt: skip
        async with self._guard.operation(f"files.{op}", details) as operation:
            operation.changed = changed
            if op in _ADDING:
                self._guard.check_volumes(op, adds=True)
            return await self._do(work)

    async def _while_there_is_space(self, op: str, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Pass a stream on until the volumes of the box are full: an upload may have no end."""
        async for piece in pieces:
            self._guard.check_volumes(op, adds=True)
            yield piece

    async def _do(self, work: "Callable[[Files], Awaitable[T]]") -> T:
        instance = await self._guard.begin()
        try:
            return await work(self._of(instance))
        except HutchError as error:
            await self._guard.failed(error)
            raise
        finally:
            self._guard.end()

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        return await self._record(
            "read", lambda files: files.read(path, offset=offset, limit=limit), path=path, offset=offset, limit=limit
        )

    async def read_text(self, path: str) -> str:
        return await self._record("read", lambda files: files.read_text(path), path=path)

    async def read_lines(self, path: str, *, start: int = 1, count: int = 2000) -> tuple[list[str], bool]:
        return await self._record(
            "read", lambda files: files.read_lines(path, start=start, count=count), path=path, start=start, count=count
        )

    async def open(self, path: str, *, offset: int = 0, limit: int | None = None) -> AsyncIterator[bytes]:
        async with self._guard.operation("files.read", {"path": path, "offset": offset, "limit": limit}) as operation:
            instance = await self._guard.begin()
            read = 0
            try:
                async for piece in self._of(instance).open(path, offset=offset, limit=limit):
                    read += len(piece)
                    yield piece
            finally:
                operation.note(bytes=read)
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
        size = len(data) if isinstance(data, bytes | str) else None
        if not isinstance(data, bytes | str):
            data = self._while_there_is_space("write", data)
        return await self._record(
            "write",
            lambda files: files.write(path, data, append=append, mode=mode, sync=sync, parents=parents),
            changed=(path,), path=path, append=append or None, size=size,
        )  # fmt: skip

    async def edit(
        self, path: str, old: str | bytes, new: str | bytes, *, replace_all: bool = False, expect: str | None = None
    ) -> Edited:
        return await self._record(
            "edit",
            lambda files: files.edit(path, old, new, replace_all=replace_all, expect=expect),
            changed=(path,), path=path, old_size=len(old), new_size=len(new), replace_all=replace_all or None,
        )  # fmt: skip

    async def digest(self, path: str) -> str:
        return await self._record("digest", lambda files: files.digest(path), path=path)

    async def stat(self, path: str) -> FileInfo:
        return await self._do(lambda files: files.stat(path))

    async def exists(self, path: str) -> bool:
        return await self._do(lambda files: files.exists(path))

    async def list(self, path: str = ".") -> list[FileInfo]:
        return await self._record("list", lambda files: files.list(path), path=path)

    async def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        await self._record(
            "mkdir", lambda files: files.mkdir(path, parents=parents, exist_ok=exist_ok), changed=(path,), path=path
        )

    async def move(self, source: str, target: str, *, overwrite: bool = False) -> None:
        await self._record(
            "move",
            lambda files: files.move(source, target, overwrite=overwrite),
            changed=(source, target), source=source, target=target, overwrite=overwrite or None,
        )  # fmt: skip

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> None:
        await self._record(
            "remove",
            lambda files: files.remove(path, recursive=recursive, missing_ok=missing_ok),
            changed=(path,), path=path, recursive=recursive or None,
        )  # fmt: skip

    async def glob(self, pattern: str, *, root: str = ".", limit: int = 10_000) -> Matches:
        return await self._record(
            "glob", lambda files: files.glob(pattern, root=root, limit=limit), pattern=pattern, root=root
        )

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
        return await self._record(
            "grep",
            lambda files: files.grep(
                pattern, root=root, glob=glob, ignore_case=ignore_case, limit=limit, timeout_sec=timeout_sec
            ),
            pattern=pattern, root=root, glob=glob,
        )  # fmt: skip

    def watch(self, path: str = ".", *, recursive: bool = True, attributes: bool = False) -> "GuardedWatch":
        """`attributes` distinguishes changes of mode and owner from changes of the content, where the engine can."""

        def begin(instance: Instance) -> "Watch":
            files = self._of(instance)
            if attributes:
                return streaming(files).watch(path, recursive=recursive, attributes=True)
            return files.watch(path, recursive=recursive)

        return GuardedWatch(self._guard, begin, {"path": path, "recursive": recursive})

    async def copy_in(self, source: str | Path, target: str) -> int:
        return await self._record(
            "copy_in", lambda files: files.copy_in(source, target), changed=(target,), source=str(source), target=target
        )

    async def copy_out(self, source: str, target: str | Path, *, most: int | None = None) -> int:
        return await self._record(
            "copy_out", lambda files: files.copy_out(source, target, most=most), source=source, target=str(target)
        )

    # --- what other protocols ask for ------------------------------------------------------------------------

    async def overwrite(
        self, path: str, data: AsyncIterator[bytes], *, prefix: str = "", attributes: dict[str, str] | None = None
    ) -> FileInfo:
        """Write a file in place and replace those of its extended attributes whose names begin with `prefix`."""
        return await self._record(
            "write",
            lambda files: streaming(files).overwrite(
                path, self._while_there_is_space("write", data), prefix=prefix, attributes=attributes
            ),
            changed=(path,), path=path,
        )  # fmt: skip

    async def entry(self, path: str, prefix: str = "") -> Entry:
        """Describe one file, with where it leads and its extended attributes."""
        return await self._do(lambda files: streaming(files).entry(path, prefix))

    def entry_rows(self, path: str, depth: int, prefix: str = "") -> AsyncIterator[Entry]:
        """Yield what is below a directory to a depth."""
        return self._rows("list", lambda files: files.entry_rows(path, depth, prefix), path=path)

    # --- rows as streams, for callers on other machines ------------------------------------------------------

    def list_rows(self, path: str) -> AsyncIterator[FileInfo]:
        """Yield the entries of a directory."""
        return self._rows("list", lambda files: files.list_rows(path), path=path)

    def line_rows(self, path: str, start: int, count: int) -> AsyncIterator[str | bool]:
        """Yield lines, and last whether the file ends there."""
        return self._rows(
            "read", lambda files: files.line_rows(path, start, count), path=path, start=start, count=count
        )

    def glob_rows(self, pattern: str, root: str, limit: int) -> AsyncIterator[str | Matches]:
        """Yield paths, and last how the search ended."""
        return self._rows("glob", lambda files: files.glob_rows(pattern, root, limit), pattern=pattern, root=root)

    def grep_rows(
        self, pattern: str, *, root: str, glob: str | None, ignore_case: bool, limit: int, timeout_sec: float
    ) -> AsyncIterator[GrepHit | GrepResult]:
        """Yield lines that match, and last how the search ended."""
        return self._rows(
            "grep",
            lambda files: files.grep_rows(
                pattern, root=root, glob=glob, ignore_case=ignore_case, limit=limit, timeout_sec=timeout_sec
            ),
            pattern=pattern, root=root, glob=glob,
        )  # fmt: skip

    async def _rows(
        self, op: str, work: "Callable[[GuestFiles], AsyncIterator[T]]", **details: Detail
    ) -> AsyncIterator[T]:
        async with self._guard.operation(f"files.{op}", details):
            instance = await self._guard.begin()
            try:
                async for row in work(streaming(self._of(instance))):
                    yield row
            except HutchError as error:
                await self._guard.failed(error)
                raise
            finally:
                self._guard.end()

    # --- trees as streams, for callers on other machines ------------------------------------------------------

    async def unpack(self, pieces: AsyncIterator[bytes], target: str, into: str) -> Copied:
        """Write a tree's stream (`hutch.guest.files.trees`) into the box."""
        return await self._record(
            "copy_in",
            lambda files: streaming(files).unpack(self._while_there_is_space("copy_in", pieces), target, into),
            changed=(target,),
            target=target,
        )

    async def pack(self, source: str) -> AsyncIterator[bytes]:
        """Yield the stream of a file or tree of the box."""
        async with self._guard.operation("files.copy_out", {"source": source}):
            instance = await self._guard.begin()
            try:
                async for piece in streaming(self._of(instance)).pack(source):
                    yield piece
            finally:
                self._guard.end()


def streaming(files: "Files") -> GuestFiles:
    """Return the files of a box that can be streamed; Unsupported if they cannot."""
    if not isinstance(files, GuestFiles):
        raise Unsupported(
            "this engine gives what its boxes hold only to programs on the machine that runs it",
            op="files",
            remedy="read file by file",
        )
    return files


class GuardedWatch:
    """A watch that pins its box from its start until it is closed. Enter it, or await its first change."""

    def __init__(self, guard: "Guard", watch: "Callable[[Instance], Watch]", details: Details) -> None:
        self._guard = guard
        self._watch = watch
        self._details = details
        self._inner: Watch | None = None
        self._held = AsyncExitStack()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        try:
            return await anext(await self._begin())
        except (StopAsyncIteration, HutchError):
            await self.aclose()
            raise

    async def _begin(self) -> "Watch":
        if self._closed:
            raise StopAsyncIteration
        if self._inner is None:
            self._loop = asyncio.get_running_loop()
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(self._guard.operation("files.watch", self._details))
                instance = await self._guard.begin()
                stack.callback(self._guard.end)
                self._inner = await stack.enter_async_context(self._watch(instance))
                self._held = stack.pop_all()
        return self._inner

    async def aclose(self) -> None:
        self._closed = True
        await self._held.aclose()

    def __del__(self) -> None:
        # A watch that was left by `break` must not keep its box pinned. The collector may run in another thread.
        if self._inner is not None and not self._closed and self._loop is not None:
            loop, held = self._loop, self._held
            with suppress(RuntimeError):  # The loop is closed, so nothing is pinned any more.
                loop.call_soon_threadsafe(lambda: loop.create_task(held.aclose()))
