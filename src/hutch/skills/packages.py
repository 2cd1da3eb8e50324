"""Packages on disk, each under the digest of its content, written once and never changed."""

import os
from collections.abc import Iterable
from pathlib import Path

from hutch.errors import FileMissing, NotFound
from hutch.logs import log
from hutch.skills import staging
from hutch.skills.content import Package, check_path, write_file
from hutch.skills.manifest import MANIFEST, split

_RECORD = "package.json"
_CONTENT = "content"


class Packages:
    """`<root>/<digest>/content/…` and `<root>/<digest>/package.json`. Writers hold the lock of the whole store."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[str, Package] = {}

    def has(self, digest: str) -> bool:
        """Return whether a package is complete with its content; somebody may have removed a part by hand."""
        return (self._root / digest / _RECORD).is_file() and (self._root / digest / _CONTENT / MANIFEST).is_file()

    def add(self, package: Package, staged: Path, scratch: Path) -> None:
        """Move a staged directory into place as the content of a package; a single rename makes it appear."""
        if self.has(package.digest):
            return
        target = self._root / package.digest
        if target.exists():  # a part of it was removed by hand, so it is moved out of the way first
            os.rename(target, scratch / f"broken-{package.digest}")
        complete = scratch / f"whole-{package.digest}"
        complete.mkdir()
        os.rename(staged, complete / _CONTENT)
        staging.write_atomically(complete / _RECORD, package.to_json())
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        _sync_tree(complete)
        os.rename(complete, target)
        _sync(self._root)

    def get(self, digest: str) -> Package:
        known = self._known.get(digest)
        if known is None:
            try:
                known = Package.from_json((self._root / digest / _RECORD).read_bytes())
            except FileNotFoundError as error:
                raise NotFound(f"the package {digest[:12]} is gone from the store") from error
            self._known[digest] = known
        return known

    def read(self, digest: str, path: str) -> bytes:
        check_path(path)
        if not any(file.path == path for file in self.get(digest).files):
            raise FileMissing(f"the skill has no file {path}", details={"path": path})
        return (self._root / digest / _CONTENT / path).read_bytes()

    def body(self, digest: str) -> str:
        return split(self.read(digest, MANIFEST).decode())[1].lstrip("\r\n")

    def copy(self, digest: str, into: Path) -> None:
        """Copy all files as new ones."""
        for file in self.get(digest).files:
            data = (self._root / digest / _CONTENT / file.path).read_bytes()
            write_file(os.path.join(into, file.path), data, executable=file.executable)

    def remove_unused(self, used: Iterable[str], scratch: Path) -> None:
        """Move packages to `scratch` that no version of any owner refers to."""
        if not self._root.is_dir():
            return
        for digest in set(os.listdir(self._root)) - set(used):
            os.rename(self._root / digest, scratch / f"unused-{digest}")
            self._known.pop(digest, None)
            log("skills").debug("package dropped", digest=digest)


def _sync_tree(top: Path) -> None:
    """Sync the files before the rename: after a power failure a package is complete or missing."""
    for directory, _, names in os.walk(top):
        for name in names:
            _sync(Path(directory, name))
        _sync(Path(directory))


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
