"""Mutants whose file operations take a short cut."""

import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from hutch.errors import FileFailed, FileMissing, HutchError, NoMatch
from hutch.model.files import Change, Edited, FileInfo, FileKind, GrepResult, Matches
from hutch.providers.base import Command
from tests.conformance.mutants.mutant import Mutant, MutantFiles


class WritesText(Mutant):
    kills = ("files.round_trip",)

    class Disk(MutantFiles):
        async def write(self, path: str, data: Any, **options: Any) -> FileInfo:
            text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
            return await self.inner.write(path, text, **options)


class IgnoresOffsets(Mutant):
    kills = ("files.ranges",)

    class Disk(MutantFiles):
        async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
            return await self.inner.read(path, limit=limit)


class CountsFromZero(Mutant):
    kills = ("files.lines",)

    class Disk(MutantFiles):
        async def read_lines(self, path: str, *, start: int = 1, count: int = 2000) -> Any:
            return await self.inner.read_lines(path, start=start + 1, count=count)


class LosesTheLastPiece(Mutant):
    kills = ("files.pieces",)

    class Disk(MutantFiles):
        async def open(self, path: str, **options: Any) -> AsyncIterator[bytes]:
            last = b""
            async for piece in self.inner.open(path, **options):
                if last:
                    yield last
                last = piece


class ReadsAnySize(Mutant):
    kills = ("files.too_large",)

    class Disk(MutantFiles):
        async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
            return await self.inner.read(path, offset=offset, limit=1000 if limit is None else limit)


class AppendReplaces(Mutant):
    kills = ("files.append",)

    class Disk(MutantFiles):
        async def write(self, path: str, data: Any, *, append: bool = False, **options: Any) -> FileInfo:
            return await self.inner.write(path, data, **options)


class Overwrites(Mutant):
    """The new content is written over the old one, whose end stays if it was longer."""

    kills = ("files.replace", "files.atomic")

    class Disk(MutantFiles):
        async def write(self, path: str, data: Any, **options: Any) -> FileInfo:
            script = 'cat 1<>"$1"'
            await self.box.run(Command(command=("sh", "-c", script, "sh", path), stdin=data, timeout_sec=20))
            return await self.inner.stat(path)


class LeavesHalves(Mutant):
    """What was written until the error stays."""

    kills = ("files.half_write",)

    class Disk(MutantFiles):
        async def write(self, path: str, data: Any, **options: Any) -> FileInfo:
            if isinstance(data, bytes):
                return await self.inner.write(path, data, **options)
            async for piece in data:
                written = await self.inner.write(path, piece, **options)
            return written


class LeavesTemporaries(Mutant):
    kills = ("files.concurrent_writes",)

    class Disk(MutantFiles):
        async def write(self, path: str, data: Any, **options: Any) -> FileInfo:
            await self.inner.write(f"{path}.tmp", data, **options)
            return await self.inner.write(path, data, **options)


class IgnoresMode(Mutant):
    kills = ("files.mode",)

    class Disk(MutantFiles):
        async def write(self, path: str, data: Any, *, mode: int | None = None, **options: Any) -> FileInfo:
            return await self.inner.write(path, data, **options)


class MakesNoParents(Mutant):
    kills = ("files.parents",)

    class Disk(MutantFiles):
        async def write(self, path: str, data: Any, **options: Any) -> FileInfo:
            return await self.inner.write(path, data, **{**options, "parents": False})


class HidesLinks(Mutant):
    kills = ("files.stat",)

    class Disk(MutantFiles):
        async def stat(self, path: str) -> FileInfo:
            info: FileInfo = await self.inner.stat(path)
            return info.but(kind=FileKind.FILE, target=None) if info.kind is FileKind.SYMLINK else info


class EverythingExists(Mutant):
    kills = ("files.exists",)

    class Disk(MutantFiles):
        async def exists(self, path: str) -> bool:
            return True


class HidesHiddenFiles(Mutant):
    kills = ("files.list",)

    class Disk(MutantFiles):
        async def list(self, path: str = ".") -> list[FileInfo]:
            return [entry for entry in await self.inner.list(path) if "/." not in f"/{entry.path}"]


class MakesAgain(Mutant):
    kills = ("files.mkdir",)

    class Disk(MutantFiles):
        async def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
            await self.inner.mkdir(path, parents=parents)


class MovesOverEverything(Mutant):
    kills = ("files.move",)

    class Disk(MutantFiles):
        async def move(self, source: str, target: str, *, overwrite: bool = False) -> None:
            await self.inner.move(source, target, overwrite=True)


class RemovesTrees(Mutant):
    kills = ("files.remove",)

    class Disk(MutantFiles):
        async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> None:
            await self.inner.remove(path, recursive=True, missing_ok=missing_ok)


class ListsByLines(Mutant):
    """As if `ls` had been parsed."""

    kills = ("files.odd_names",)

    class Disk(MutantFiles):
        async def list(self, path: str = ".") -> list[FileInfo]:
            return [entry.but(path=entry.path.partition("\n")[0]) for entry in await self.inner.list(path)]


class CutsPathsAtNul(Mutant):
    kills = ("files.bad_paths",)

    class Disk(MutantFiles):
        async def write(self, path: str, data: Any, **options: Any) -> FileInfo:
            return await self.inner.write(path.partition("\0")[0] or "empty", data, **options)


class RaisesOneKind(Mutant):
    """Every error is the same error."""

    kills = ("files.builtin_errors",)

    class Disk(MutantFiles):
        async def read(self, path: str, **options: Any) -> bytes:
            try:
                return await self.inner.read(path, **options)
            except HutchError as error:
                raise FileFailed(error.message) from error


class HidesErrors(Mutant):
    kills = ("files.rights", "files.endless_files")

    class Disk(MutantFiles):
        async def read(self, path: str, **options: Any) -> bytes:
            try:
                return await self.inner.read(path, **options)
            except HutchError:
                return b""

        async def write(self, path: str, data: Any, **options: Any) -> FileInfo | None:
            try:
                return await self.inner.write(path, data, **options)
            except HutchError:
                return None


class ReadsOnTheHost(Mutant):
    """Lesson 18: file tools that run outside."""

    kills = ("files.links_stay_inside",)

    class Disk(MutantFiles):
        async def read(self, path: str, **options: Any) -> bytes:
            return Path(path).read_bytes() if Path(path).is_file() else await self.inner.read(path, **options)


# --- edits -------------------------------------------------------------------------------------------------------


class EditTellsTheOldDigest(Mutant):
    kills = ("edits.once", "edits.expect")

    class Disk(MutantFiles):
        async def edit(self, path: str, old: Any, new: Any, **options: Any) -> Edited:
            digest = await self.inner.digest(path)
            return (await self.inner.edit(path, old, new, **options)).but(digest=digest)


class EditsText(Mutant):
    """Lesson 19."""

    kills = ("edits.bytes",)

    class Disk(MutantFiles):
        async def edit(self, path: str, old: Any, new: Any, **options: Any) -> Edited:
            await self.inner.write(path, (await self.inner.read_text(path)).replace("\r\n", "\n"))
            return await self.inner.edit(path, old, new, **options)


class EditsNothing(Mutant):
    """No match is no error."""

    kills = ("edits.no_match",)

    class Disk(MutantFiles):
        async def edit(self, path: str, old: Any, new: Any, **options: Any) -> Edited:
            try:
                return await self.inner.edit(path, old, new, **options)
            except NoMatch:
                return Edited(path=path, replaced=0, size=0, digest="")


class EditsEveryMatch(Mutant):
    kills = ("edits.several_matches",)

    class Disk(MutantFiles):
        async def edit(self, path: str, old: Any, new: Any, **options: Any) -> Edited:
            return await self.inner.edit(path, old, new, **{**options, "replace_all": True})


class EditsByPattern(Mutant):
    kills = ("edits.literal",)

    class Disk(MutantFiles):
        async def edit(self, path: str, old: Any, new: Any, **options: Any) -> Edited:
            found = re.search(old, await self.inner.read_text(path))
            return await self.inner.edit(path, found[0] if found else old, new, **{**options, "replace_all": True})


class IgnoresExpect(Mutant):
    kills = ("edits.expect",)

    class Disk(MutantFiles):
        async def edit(self, path: str, old: Any, new: Any, **options: Any) -> Edited:
            return await self.inner.edit(path, old, new, **{**options, "expect": None})


class DigestsByMd5(Mutant):
    kills = ("edits.digest",)

    class Disk(MutantFiles):
        async def digest(self, path: str) -> str:
            return hashlib.md5(await self.inner.read(path)).hexdigest()


class EditMakesNewFiles(Mutant):
    kills = ("edits.keeps_mode",)

    class Disk(MutantFiles):
        async def edit(self, path: str, old: Any, new: Any, **options: Any) -> Edited:
            edited: Edited = await self.inner.edit(path, old, new, **options)
            await self.box.run(Command(command=("chmod", "600", path), timeout_sec=20))
            return edited


# --- search ------------------------------------------------------------------------------------------------------


class GlobGoesOneDown(Mutant):
    """Lesson 20."""

    kills = ("search.glob",)

    class Disk(MutantFiles):
        async def glob(self, pattern: str, **options: Any) -> Matches:
            return await self.inner.glob(pattern.replace("**/", "*/"), **options)


class GlobShowsHidden(Mutant):
    kills = ("search.glob_hidden",)

    class Disk(MutantFiles):
        async def glob(self, pattern: str, **options: Any) -> Matches:
            hidden = await self.inner.glob(pattern.replace("*", ".*"), **options)
            found: Matches = await self.inner.glob(pattern, **options)
            return found.but(paths=(*found.paths, *hidden.paths))


class AlwaysComplete(Mutant):
    kills = ("search.glob_bound", "search.grep_bound")

    class Disk(MutantFiles):
        async def glob(self, pattern: str, **options: Any) -> Matches:
            return (await self.inner.glob(pattern, **options)).but(complete=True)

        async def grep(self, pattern: str, **options: Any) -> GrepResult:
            return (await self.inner.grep(pattern, **options)).but(complete=True)


class GrepCountsFromZero(Mutant):
    kills = ("search.grep",)

    class Disk(MutantFiles):
        async def grep(self, pattern: str, **options: Any) -> GrepResult:
            found: GrepResult = await self.inner.grep(pattern, **options)
            return found.but(hits=tuple(hit.but(line=hit.line - 1) for hit in found.hits))


class GrepIgnoresOptions(Mutant):
    kills = ("search.grep_options",)

    class Disk(MutantFiles):
        async def grep(self, pattern: str, **options: Any) -> GrepResult:
            return await self.inner.grep(pattern)


class GrepNeedsText(Mutant):
    kills = ("search.grep_binary",)

    class Disk(MutantFiles):
        async def grep(self, pattern: str, **options: Any) -> GrepResult:
            found: GrepResult = await self.inner.grep(pattern, **options)
            return found.but(hits=tuple(hit for hit in found.hits if hit.text.isascii()))


class MissesMoves(Mutant):
    kills = ("search.watch",)

    class Disk(MutantFiles):
        async def watch(self, path: str = ".", *, recursive: bool = True) -> AsyncIterator[Change]:
            async for change in self.inner.watch(path, recursive=recursive):
                if not change.kind.startswith("moved"):
                    yield change


class WatchesOneLevel(Mutant):
    kills = ("search.watch_deep",)

    class Disk(MutantFiles):
        def watch(self, path: str = ".", *, recursive: bool = True) -> Any:
            return self.inner.watch(path, recursive=False)


class WatchesEverything(Mutant):
    kills = ("search.watch_flat",)

    class Disk(MutantFiles):
        def watch(self, path: str = ".", *, recursive: bool = True) -> Any:
            return self.inner.watch(path, recursive=True)


# --- trees -------------------------------------------------------------------------------------------------------


class CopyLosesModes(Mutant):
    kills = ("trees.file_in",)

    class Disk(MutantFiles):
        async def copy_in(self, source: Any, target: str) -> int:
            size: int = await self.inner.copy_in(source, target)
            await self.box.run(Command(command=("chmod", "644", target), timeout_sec=20))
            return size


class CopySkipsLinks(Mutant):
    kills = ("trees.tree_in",)

    class Disk(MutantFiles):
        async def copy_in(self, source: Any, target: str) -> int:
            size: int = await self.inner.copy_in(source, target)
            await self.box.run(Command(command=("find", target, "-type", "l", "-delete"), timeout_sec=20))
            return size


class CopySkipsEmptyDirectories(Mutant):
    kills = ("trees.tree_out",)

    class Disk(MutantFiles):
        async def copy_out(self, source: str, target: Any) -> int:
            size: int = await self.inner.copy_out(source, target)
            (Path(target) / "empty").rmdir()
            return size


class CopyCutsTheEnd(Mutant):
    kills = ("trees.file_out",)

    class Disk(MutantFiles):
        async def copy_out(self, source: str, target: Any) -> int:
            size: int = await self.inner.copy_out(source, target)
            Path(target).write_bytes(Path(target).read_bytes()[:-1])
            return size


class CopiesNothing(Mutant):
    """What is not there is copied without stderr."""

    kills = ("trees.missing",)

    class Disk(MutantFiles):
        async def copy_in(self, source: Any, target: str) -> int:
            try:
                return await self.inner.copy_in(source, target)
            except (FileMissing, FileNotFoundError):
                return 0


class CopyWritesThroughLinks(Mutant):
    """The second copy goes where the first one's links lead."""

    kills = ("trees.links_out",)

    class Disk(MutantFiles):
        async def copy_out(self, source: str, target: Any) -> int:
            size: int = await self.inner.copy_out(source, target)
            for path in Path(target).iterdir():
                if path.is_symlink() and path.is_file():
                    path.write_text("stolen")
            return size
