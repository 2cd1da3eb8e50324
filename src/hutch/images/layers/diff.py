"""Creating a layer from what a box has changed or from files of this machine, as a tar in OCI's format.

Entries have a fixed order, so the same files give the same layer.
"""

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

from hutch.errors import Invalid, NotFound
from hutch.images.layers import merged_view
from hutch.images.layers.unpack import OPAQUE

Owner = Callable[[int], int]
"""Maps a user or group id on disk to the one in the image."""

_BOX_DIRECTORIES = ("dev", "proc", "run", "sys", "workspace")
"""Directories that belong to a box, not to an image."""
_PREPARED_DIRECTORIES = frozenset({"home", "home/user", "tmp", "var", "var/tmp"})
"""Directories created for every box; they are included only if something was put there."""
_DELETED_PREFIX, _OPAQUE_MARKER = ".wh.", ".wh..wh..opq"


def from_changes(upper: str, out: BinaryIO, owner: Owner, *, with_workspace: bool = False) -> int:
    """Write all that a box has changed, and return the number of entries. Nothing of the box may run any more."""
    writer = _Writer(out, owner)
    left_out = [name for name in _BOX_DIRECTORIES if name != "workspace" or not with_workspace]
    with writer.tar:
        _walk(writer, upper, "", left_out)
    return writer.count


def from_files(copies: Sequence[tuple[str, str]], layers: Sequence[str], out: BinaryIO) -> str:
    """Write files of this machine into an image whose `layers` (topmost first) show what exists there; root owns
    them. Return the digest of what was copied, which does not depend on times."""
    writer = _Writer(out, lambda number: 0)
    with writer.tar:
        for source, target in copies:
            _copy(writer, source, target, layers)
    return writer.content.hexdigest()


class _Writer:
    def __init__(self, out: BinaryIO, owner: Owner) -> None:
        self.tar = tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT)  # noqa: SIM115  # closed by `with`
        self.content = hashlib.sha256()
        self.count = 0
        self._owner = owner
        self._links: dict[tuple[int, int], str] = {}
        self.named: set[str] = set()

    def add(self, name: str, path: str, facts: os.stat_result) -> None:
        """Add the file at `path` under `name`; sockets and devices are left out."""
        info = tarfile.TarInfo(name)
        info.mode = stat.S_IMODE(facts.st_mode)
        info.mtime = int(facts.st_mtime)
        info.uid, info.gid = self._owner(facts.st_uid), self._owner(facts.st_gid)
        if stat.S_ISDIR(facts.st_mode):
            info.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(facts.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
        elif stat.S_ISFIFO(facts.st_mode):
            info.type = tarfile.FIFOTYPE
        elif not stat.S_ISREG(facts.st_mode):
            return
        elif (first := self._links.setdefault((facts.st_dev, facts.st_ino), name)) != name:
            info.type, info.linkname = tarfile.LNKTYPE, first
        else:
            info.size = facts.st_size
        info.pax_headers = _attributes(path) if info.type in (tarfile.REGTYPE, tarfile.DIRTYPE) else {}
        if info.type == tarfile.REGTYPE:
            with _open_readable(path, facts) as file:
                self._put(info, _Hashed(file, self.content))
        else:
            self._put(info)

    def mark(self, name: str) -> None:
        """Add an empty file whose name marks a deletion."""
        self._put(tarfile.TarInfo(name))

    def directory(self, name: str, facts: os.stat_result | None) -> None:
        """Add a directory above copied files, with the image's own mode if it has that directory."""
        info = tarfile.TarInfo(name)
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        if facts is not None:
            info.mode, info.mtime = stat.S_IMODE(facts.st_mode), int(facts.st_mtime)
            if os.geteuid() == 0:
                info.uid, info.gid = facts.st_uid, facts.st_gid
        self._put(info)

    def _put(self, info: tarfile.TarInfo, content: Any = None) -> None:
        self.count += 1
        self.named.add(info.name)
        header = (info.name, info.type, info.mode, info.uid, info.gid, info.size, info.linkname, info.pax_headers)
        self.content.update(repr(header).encode("utf-8", "surrogateescape"))
        self.tar.addfile(info, content)


class _Hashed(io.RawIOBase):
    def __init__(self, file: BinaryIO, sha: Any) -> None:
        self._file = file
        self._sha = sha

    def read(self, count: int = -1) -> bytes:
        data = self._file.read(count)
        self._sha.update(data)
        return data


# --- what a box has changed ----------------------------------------------------------------------------------


def _walk(writer: _Writer, directory: str, above: str, left_out: Sequence[str]) -> None:
    for entry in _sorted(directory):
        name = f"{above}/{entry.name}" if above else entry.name
        if name in left_out:
            continue
        facts = entry.stat(follow_symlinks=False)
        if stat.S_ISCHR(facts.st_mode) and facts.st_rdev == 0:
            writer.mark(f"{above}/{_DELETED_PREFIX}{entry.name}" if above else f"{_DELETED_PREFIX}{entry.name}")
        elif not stat.S_ISDIR(facts.st_mode):
            writer.add(name, entry.path, facts)
        elif name not in _PREPARED_DIRECTORIES or any(_is_kept(name, each.name) for each in _sorted(entry.path)):
            writer.add(name, entry.path, facts)
            if _is_opaque(entry.path):
                writer.mark(f"{name}/{_OPAQUE_MARKER}")
            _walk(writer, entry.path, name, left_out)


def _is_kept(above: str, name: str) -> bool:
    return f"{above}/{name}" not in _PREPARED_DIRECTORIES


def _sorted(directory: str) -> list["os.DirEntry[str]"]:
    if os.geteuid() != 0 and not os.access(directory, os.R_OK | os.X_OK):
        os.chmod(directory, stat.S_IMODE(os.lstat(directory).st_mode) | 0o500)  # the box is about to be destroyed
    with os.scandir(directory) as entries:
        return sorted(entries, key=lambda entry: entry.name)


def _open_readable(path: str, facts: os.stat_result) -> BinaryIO:
    try:
        return _open(path)
    except PermissionError:
        os.chmod(path, stat.S_IMODE(facts.st_mode) | 0o400)  # likewise; the entry keeps the old mode
        return _open(path)


def _open(path: str) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


def _attributes(path: str) -> dict[str, str]:
    names = [name for name in os.listxattr(path, follow_symlinks=False) if name.startswith("user.")]
    kept = [name for name in names if not name.startswith("user.overlay.")]
    return {
        f"SCHILY.xattr.{name}": os.getxattr(path, name, follow_symlinks=False).decode("utf-8", "surrogateescape")
        for name in kept
    }


def _is_opaque(path: str) -> bool:
    try:
        return os.getxattr(path, OPAQUE, follow_symlinks=False) == b"y"
    except OSError:
        return False


# --- files of this machine -----------------------------------------------------------------------------------


def _copy(writer: _Writer, source: str, target: str, layers: Sequence[str]) -> None:
    try:
        facts = os.stat(source)
    except OSError as error:
        raise NotFound(f"{source} cannot be copied: {error.strerror}", op="build") from error
    into = merged_view.resolve(layers, target)
    there = merged_view.find(layers, target)
    if stat.S_ISDIR(facts.st_mode):
        if there is not None and not stat.S_ISDIR(there.mode):
            raise Invalid(f"{target} is a file of the image, and {source} is a directory", op="build")
        _parents(writer, f"{into}/x" if into else "x", layers)
        for path, name in _tree(source):
            writer.add(f"{into}/{name}" if into else name, path, os.lstat(path))
        return
    if not stat.S_ISREG(facts.st_mode):
        raise Invalid(f"{source} is neither a file nor a directory", op="build")
    if target.endswith("/") or (there is not None and stat.S_ISDIR(there.mode)):
        into = f"{into}/{os.path.basename(source)}" if into else os.path.basename(source)
    if not into:
        raise Invalid(f"--copy {source} names no path in the image", op="build")
    _parents(writer, into, layers)
    writer.add(into, os.path.realpath(source), facts)


def _parents(writer: _Writer, name: str, layers: Sequence[str]) -> None:
    parts = name.split("/")[:-1]
    for count in range(1, len(parts) + 1):
        above = "/".join(parts[:count])
        if above not in writer.named:
            found = merged_view.find(layers, above)
            writer.directory(above, os.lstat(found.path) if found is not None else None)


def _tree(top: str) -> Iterator[tuple[str, str]]:
    """Yield path and name of everything below in a fixed order, a directory before its content."""
    for entry in _sorted_names(top):
        yield entry, os.path.basename(entry)
        if os.path.isdir(entry) and not os.path.islink(entry):
            for path, name in _tree(entry):
                yield path, f"{os.path.basename(entry)}/{name}"


def _sorted_names(top: str) -> list[str]:
    try:
        return sorted(os.path.join(top, name) for name in os.listdir(top))
    except OSError as error:
        raise Invalid(f"{top} cannot be copied: {error.strerror}", op="build") from error
