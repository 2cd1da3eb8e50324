"""`GuestFiles`: the `Files` protocol over a link. What the guest answers is bounded and checked before it is used."""

import builtins
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, cast

from hutch.errors import BoxBroken, FileFailed, HutchError, Invalid
from hutch.model.arguments import as_bytes
from hutch.model.files import Edited, Entry, FileInfo, GrepHit, GrepResult, Matches
from hutch.providers.guest_client import trees
from hutch.providers.guest_client.answers import (
    Copied,
    Digest,
    Done,
    Existence,
    LinesEnd,
    Notes,
    SearchEnd,
    SearchProgress,
    checked,
)
from hutch.providers.guest_client.channel import Channel, content_of, rows_of
from hutch.providers.guest_client.link import Link
from hutch.providers.guest_client.watch import Watch

MAX_READ = 64 << 20
"""The most bytes that `read`, `read_text` and `read_lines` return at once."""
MAX_ENTRIES = 200_000
SEARCH_GRACE = 30.0
"""The seconds after its timeout that a search's answer may come before the guest counts as silent."""

_CODES = frozenset(
    {
        "file_not_found", "file_exists", "file_denied", "is_directory", "not_directory", "file_failed", "too_large",
        "no_match", "file_changed", "invalid", "refused", "unsupported", "quota", "cancelled", "internal",
        # The link itself raises these, not the guest:
        "unavailable", "timeout", "box_broken",
    }
)  # fmt: skip
"""The errors of file operations. A captured guest must not be able to say that its box is `gone`."""


@contextmanager
def operation(name: str) -> Iterator[None]:
    """Name the operation in errors raised inside, and let only errors of files through."""
    try:
        yield
    except HutchError as error:
        if error.code not in _CODES:
            raise FileFailed(f"the guest failed with {error.code!r}: {error.message}", op=name) from error
        error.op = error.op or name
        raise


class GuestFiles:
    """The files as the box's user sees them, through its guest."""

    def __init__(self, link: Callable[[], Awaitable[Link]], most: Callable[[str], int]) -> None:
        """`most` returns how many bytes a copy of a path may bring to the host."""
        self._link = link
        self._most = most

    async def _ask(self, op: str, shape: type[Any] = Done, *, timeout: float | None = 30.0, **fields: Any) -> Any:
        with operation(op):
            link = await self._link()
            return checked(await link.request(op, timeout=timeout, **fields), shape)

    async def _open(self, op: str, *, timeout: float | None = None, **fields: Any) -> Channel:
        return (await self._link()).open(op, timeout=timeout, **fields)

    # --- content ---------------------------------------------------------------------------------------------

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        bound = MAX_READ if limit is None else None
        with operation("files.read"):
            async with await self._open("files.read", path=path, offset=offset, limit=limit, bound=bound) as channel:
                return b"".join([part async for part in content_of(channel, MAX_READ if limit is None else limit)])

    async def read_text(self, path: str) -> str:
        return (await self.read(path)).decode(errors="replace")

    async def read_lines(self, path: str, *, start: int = 1, count: int = 2000) -> tuple[builtins.list[str], bool]:
        *lines, end = [line async for line in self.line_rows(path, start, count)]
        return [line for line in lines if isinstance(line, str)], end is True

    async def line_rows(self, path: str, start: int, count: int) -> AsyncIterator[str | bool]:
        """Yield each line as it comes, and last whether the file ends there."""
        with operation("files.lines"):
            async with await self._open("files.lines", path=path, start=start, count=count, bound=MAX_READ) as channel:
                partial = bytearray()
                async for content in content_of(channel, MAX_READ):
                    first, *lines = content.split(b"\n")
                    partial += first
                    for line in lines:
                        yield partial.decode(errors="replace")
                        partial = bytearray(line)
                if partial:
                    yield partial.decode(errors="replace")
                yield checked(await channel.answer(), LinesEnd).eof

    async def open(self, path: str, *, offset: int = 0, limit: int | None = None) -> AsyncIterator[bytes]:
        with operation("files.read"):
            async with await self._open("files.read", path=path, offset=offset, limit=limit) as channel:
                async for part in content_of(channel, limit):
                    yield part

    async def write(
        self, path: str, data: bytes | str | AsyncIterator[bytes], *, append: bool = False, mode: int | None = None,
        sync: bool = False, parents: bool = True,
    ) -> FileInfo:  # fmt: skip
        fields: dict[str, Any] = {"path": path, "append": append, "mode": mode, "sync": sync, "parents": parents}
        with operation("files.write"):
            content = as_bytes(data) if isinstance(data, str) else data
            # Leaving before the answer cancels the write: the guest removes its temporary file.
            async with await self._open("files.write", **fields) as channel:
                if isinstance(content, bytes | bytearray | memoryview):
                    await channel.send(content)
                else:
                    async for part in content:
                        await channel.send(part)
                        if channel.done:
                            break
                channel.end()
                return checked(await channel.answer(), FileInfo)

    async def overwrite(
        self, path: str, data: AsyncIterator[bytes], *, prefix: str = "", attributes: dict[str, str] | None = None
    ) -> FileInfo:
        """Write a file in place, so that its watchers see the same file change, and replace its attributes."""
        fields: dict[str, Any] = {
            "path": path, "parents": True, "in_place": True, "attribute_prefix": prefix, "attributes": attributes or {}
        }  # fmt: skip
        with operation("files.write"):
            async with await self._open("files.write", **fields) as channel:
                async for part in data:
                    await channel.send(part)
                    if channel.done:
                        break
                channel.end()
                return checked(await channel.answer(), FileInfo)

    async def edit(
        self, path: str, old: str | bytes, new: str | bytes, *, replace_all: bool = False, expect: str | None = None
    ) -> Edited:
        with operation("files.edit"):
            before, after = as_bytes(old), as_bytes(new)
            if not before:
                raise Invalid("the text to replace is empty", remedy="write the file, or name the text that is there")
            options: dict[str, Any] = {"replace_all": replace_all, "expect": expect}
            async with await self._open("files.edit", path=path, old_size=len(before), **options) as channel:
                await channel.send(before + after)
                channel.end()
                return checked(await channel.answer(), Edited)

    async def digest(self, path: str) -> str:
        answer: Digest = await self._ask("files.digest", Digest, timeout=None, path=path)
        return answer.digest

    # --- names -----------------------------------------------------------------------------------------------

    async def stat(self, path: str) -> FileInfo:
        info: FileInfo = await self._ask("files.stat", FileInfo, path=path)
        return info

    async def exists(self, path: str) -> bool:
        answer: Existence = await self._ask("files.exists", Existence, path=path)
        return answer.exists

    async def list(self, path: str = ".") -> builtins.list[FileInfo]:
        return [info async for info in self.list_rows(path)]

    async def list_rows(self, path: str) -> AsyncIterator[FileInfo]:
        """Yield each entry as it comes."""
        with operation("files.list"):
            async with await self._open("files.list", path=path) as channel:
                async for row in rows_of(channel, MAX_ENTRIES):
                    yield checked(row, FileInfo)

    async def entry(self, path: str, prefix: str = "") -> Entry:
        """Describe one file, with the extended attributes whose names begin with `prefix`."""
        async with aclosing(cast(AsyncGenerator[Entry, None], self.entry_rows(path, 0, prefix))) as rows:
            async for entry in rows:
                return entry
        raise BoxBroken("the guest described nothing")

    async def entry_rows(self, path: str, depth: int, prefix: str = "") -> AsyncIterator[Entry]:
        """Yield what is below a directory to a depth, each directory before its content."""
        with operation("files.list"):
            async with await self._open("files.entries", path=path, depth=depth, attributes=prefix) as channel:
                async for row in rows_of(channel, MAX_ENTRIES):
                    yield checked(row, Entry)

    async def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        await self._ask("files.mkdir", path=path, parents=parents, exist_ok=exist_ok)

    async def move(self, source: str, target: str, *, overwrite: bool = False) -> None:
        await self._ask("files.move", timeout=None, source=source, target=target, overwrite=overwrite)

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> None:
        await self._ask("files.remove", timeout=None, path=path, recursive=recursive, missing_ok=missing_ok)

    # --- searching -------------------------------------------------------------------------------------------

    async def glob(self, pattern: str, *, root: str = ".", limit: int = 10_000) -> Matches:
        *paths, end = [row async for row in self.glob_rows(pattern, root, limit)]
        assert isinstance(end, Matches)
        return end.but(paths=tuple(paths))

    async def glob_rows(self, pattern: str, root: str, limit: int) -> AsyncIterator[str | Matches]:
        """Yield each path as it is found, and last how the search ended."""
        with operation("files.glob"):
            async with await self._open("files.glob", pattern=pattern, root=root, limit=limit) as channel:
                async for row in rows_of(channel, limit):
                    yield checked(row, str)
                notes = checked(await channel.answer(), Notes).notes
        yield Matches(paths=(), complete=not notes, note="; ".join(notes))

    async def grep(
        self, pattern: str, *, root: str = ".", glob: str | None = None, ignore_case: bool = False,
        limit: int = 1000, timeout_sec: float = 10.0,
    ) -> GrepResult:  # fmt: skip
        rows = self.grep_rows(
            pattern, root=root, glob=glob, ignore_case=ignore_case, limit=limit, timeout_sec=timeout_sec
        )
        *hits, end = [row async for row in rows]
        assert isinstance(end, GrepResult)
        return end.but(hits=tuple(hits))

    async def grep_rows(
        self, pattern: str, *, root: str, glob: str | None, ignore_case: bool, limit: int, timeout_sec: float
    ) -> AsyncIterator[GrepHit | GrepResult]:
        """Yield each line as it is found, and last how the search ended."""
        fields = {
            "pattern": pattern, "root": root, "glob": glob, "ignore_case": ignore_case, "limit": limit,
            "timeout_sec": timeout_sec,
        }  # fmt: skip
        found = 0
        progress = SearchProgress()
        with operation("files.grep"):
            async with await self._open("files.grep", timeout=timeout_sec + SEARCH_GRACE, **fields) as channel:
                async for row in rows_of(channel):
                    if isinstance(row, dict) and "path" in row:
                        found += 1
                        if found > limit:
                            raise BoxBroken("the guest found more lines than it was asked for")
                        yield checked(row, GrepHit)
                        continue
                    progress = checked(row, SearchProgress)
                    if progress.failed is not None:
                        raise HutchError.of(progress.failed)
                end = checked(await channel.answer(), SearchEnd)
        notes = progress.notes
        if not progress.done:
            notes = [f"stopped after {timeout_sec:g} s" if end.timed_out else "the search was killed before its end"]
        yield GrepResult(hits=(), complete=not notes, note="; ".join(notes), files_searched=progress.searched)

    def watch(self, path: str = ".", *, recursive: bool = True, attributes: bool = False) -> Watch:
        """`attributes` distinguishes changes of mode and owner from changes of the content."""
        return Watch(lambda: self._open("files.watch", path=path, recursive=recursive, attributes=attributes))

    # --- trees -----------------------------------------------------------------------------------------------

    async def copy_in(self, source: str | Path, target: str) -> int:
        with operation("files.copy_in"):
            return await trees.copy_in(self._open, source, target)

    async def copy_out(self, source: str, target: str | Path, *, most: int | None = None) -> int:
        with operation("files.copy_out"):
            bound = self._most(source) if most is None else most
            return await trees.copy_out(self._open, source, target, bound)

    async def unpack(self, pieces: AsyncIterator[bytes], target: str, into: str) -> Copied:
        """Do what `copy_in` does for a caller that has a tree's stream instead of the tree."""
        with operation("files.copy_in"):
            return await trees.unpack(self._open, pieces, target, into)

    async def pack(self, source: str) -> AsyncIterator[bytes]:
        """Yield the stream that `copy_out` unpacks."""
        with operation("files.copy_out"):
            async for piece in trees.pack(self._open, source):
                yield piece
