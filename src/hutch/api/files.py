"""The protocol of a box's files, and of watching them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from hutch.model.files import Change, Edited, FileInfo, GrepResult, Matches


class Files(Protocol):
    """Files as the box's user sees them. Relative paths start at the workdir.

    Raises: FileMissing, FileThere, FileDenied, IsDirectory and NotDirectory, which are also the builtin errors of the
    same meaning; FileFailed for any other answer of the kernel, with its errno.
    """

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """Read a range, or the whole file. Raises: FileTooLarge for a whole file of over 64 MB."""

    async def read_text(self, path: str) -> str:
        """Read the whole file as UTF-8; bytes that are not UTF-8 are replaced."""

    async def read_lines(self, path: str, *, start: int = 1, count: int = 2000) -> tuple[list[str], bool]:
        """Read lines from the `start`-th on; also return whether they reach the end of the file."""

    def open(self, path: str, *, offset: int = 0, limit: int | None = None) -> AsyncIterator[bytes]:
        """Read a file of any size in pieces; the box sends only as fast as they are taken."""

    async def write(
        self, path: str, data: bytes | str | AsyncIterator[bytes], *, append: bool = False, mode: int | None = None,
        sync: bool = False, parents: bool = True,
    ) -> FileInfo:  # fmt: skip
        """Write a file, atomically (temporary file and rename) unless appending; an existing file keeps its mode."""

    async def edit(
        self, path: str, old: str | bytes, new: str | bytes, *, replace_all: bool = False, expect: str | None = None
    ) -> Edited:
        """Replace an exact match.

        Raises: NoMatch unless `old` is there once (with `replace_all`: at least once); FileChanged if `expect` (a
        digest from an earlier edit or from `digest`) is not the file's.
        """

    async def digest(self, path: str) -> str: ...

    async def stat(self, path: str) -> FileInfo: ...

    async def exists(self, path: str) -> bool: ...

    async def list(self, path: str = ".") -> list[FileInfo]:
        """List the entries of one directory, sorted by name."""

    async def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None: ...

    async def move(self, source: str, target: str, *, overwrite: bool = False) -> None: ...

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> None: ...

    async def glob(self, pattern: str, *, root: str = ".", limit: int = 10_000) -> Matches:
        """Find paths. `**` crosses directories; hidden names match only a pattern that names the dot."""

    async def grep(
        self, pattern: str, *, root: str = ".", glob: str | None = None, ignore_case: bool = False,
        limit: int = 1000, timeout_sec: float = 10.0,
    ) -> GrepResult:  # fmt: skip
        """Search text files for a Python regular expression; a result that was cut by a bound says so."""

    def watch(self, path: str = ".", *, recursive: bool = True) -> "Watch":
        """Watch for changes; it begins when `async with` is entered or the first item is awaited."""

    async def copy_in(self, source: str | Path, target: str) -> int:
        """Copy a host file or tree into the box; return the number of bytes."""

    async def copy_out(self, source: str, target: str | Path, *, most: int | None = None) -> int:
        """Copy a file or tree of the box to the host; return the number of bytes.

        Raises: Refused for names that would leave `target`; FileTooLarge for more than `most` bytes on disk (default:
        what the box's own disk can hold, and 16 GB of an image).
        """


class Watch(Protocol):
    """Changes of files as they happen. A cancelled wait, as by a timeout, loses no change."""

    def __aiter__(self) -> AsyncIterator[Change]: ...

    async def __anext__(self) -> Change: ...

    async def __aenter__(self) -> "Watch": ...

    async def __aexit__(self, *_: object) -> None: ...

    async def aclose(self) -> None: ...
