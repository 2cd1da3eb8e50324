"""A state directory as one file and back: records, receipts, keys, volumes, skills, images, files of persistent boxes.

The file is a compressed tar archive whose first member is a manifest. Databases are copied by SQLite itself, so a
backup of a directory in use is consistent. A backup holds the state's key and every box's files: who has the file has
all of that. What can be made again (caches), and what belongs to running processes (locks, sockets), is left out.
"""

import errno
import io
import json
import os
import secrets
import shutil
import sqlite3
import stat
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any

import hutch
from hutch.config import directories
from hutch.errors import Conflict, FileFailed, Invalid, Unavailable
from hutch.model.record import Record
from hutch.model.units import format_bytes

FORMAT = 1
MANIFEST = "manifest.json"
MAX_MANIFEST = 1 << 20
MAX_GROWTH = 64 << 20
"""Bytes by which files of a directory in use may have grown while the backup was written."""
DATABASES = ("hutch.db", "receipts.db")
LEFT_OUT = frozenset({"cache", "keepers", "spool", "server.json", "server.lock"})
IMAGES = "images"
XATTR = "SCHILY.xattr."
"""The prefix by which tar programs keep extended attributes. Overlays mark replaced directories with one."""

Progress = Callable[[int, int], None]
"""Receives the bytes done and the bytes in total."""


class Manifest(Record, frozen=True, kw_only=True):
    """What a backup says of itself."""

    format: int
    version: str
    """The release that wrote it."""
    created_at: float
    state_dir: str
    """Where the directory was: records that name it are changed if it is restored elsewhere."""
    size: int
    """Bytes of all files, before compression."""
    images: bool


def write_backup(state_dir: Path, file: Path, *, images: bool = True, progress: Progress | None = None) -> Manifest:
    """Write the state directory to a new private file. Conflict if the file exists."""
    if not (state_dir / DATABASES[0]).is_file():
        raise Invalid(f"{state_dir} is no state directory of Hutch", remedy="set HUTCH_STATE_DIR to the right one")
    if file.exists():
        raise Conflict(f"{file} exists already", remedy="choose another name, or remove it first")
    left_out = LEFT_OUT if images else LEFT_OUT | {IMAGES}
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    copies = state_dir / f".backup-{secrets.token_hex(4)}"
    try:
        copies.mkdir(mode=0o700)
        databases = [_copied_database(state_dir / name, copies) for name in DATABASES if (state_dir / name).is_file()]
        kept = [name for name in sorted(os.listdir(state_dir)) if not _is_left_out(name, left_out)]
        counting = _Packer(None)
        counting.add(state_dir, kept)
        size = counting.done + sum(copy.stat().st_size for copy in databases)
        manifest = Manifest(
            format=FORMAT, version=hutch.__version__, created_at=time.time(), state_dir=str(state_dir.resolve()),
            size=size, images=images,
        )  # fmt: skip
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as raw:
            with tarfile.open(fileobj=raw, mode="w:gz", compresslevel=1, format=tarfile.PAX_FORMAT) as archive:
                _add_bytes(archive, MANIFEST, manifest.to_json())
                packer = _Packer(archive, (lambda done: progress(min(done, size), size)) if progress else None)
                packer.add(copies, [copy.name for copy in databases])
                packer.add(state_dir, kept)
            raw.flush()
            os.fsync(raw.fileno())
        os.link(draft, file)  # Unlike a rename, it fails if somebody has made the file meanwhile.
    except FileExistsError:
        raise Conflict(f"{file} exists already", remedy="choose another name, or remove it first") from None
    except OSError as error:
        details = {"errno": error.errno or 0}
        raise FileFailed(f"the backup {file} cannot be written: {error}", details=details) from error
    finally:
        draft.unlink(missing_ok=True)
        shutil.rmtree(copies, ignore_errors=True)
    return manifest


def read_backup(file: Path, state_dir: Path, *, progress: Progress | None = None) -> Manifest:
    """Restore a backup as a state directory that does not exist yet, or is empty.

    Raises: Conflict if there is something already; Invalid if the file is no backup of a release that this one knows.
    """
    if state_dir.exists() and any(state_dir.iterdir()):
        raise Conflict(
            f"{state_dir} is not empty", remedy="move it aside, or set HUTCH_STATE_DIR to a directory that is not there"
        )
    state_dir.parent.mkdir(parents=True, exist_ok=True)
    draft = state_dir.with_name(f".{state_dir.name}.{secrets.token_hex(4)}")
    try:
        with tarfile.open(file, "r:gz") as archive:
            manifest = _manifest(archive)
            free = shutil.disk_usage(state_dir.parent).free
            if manifest.size > free:
                raise Unavailable(
                    f"the backup needs {format_bytes(manifest.size)}, and {state_dir.parent} has {format_bytes(free)}",
                    retryable=False,
                    remedy="free space there, or restore elsewhere",
                )  # fmt: skip
            directories.make(draft)
            _extract(archive, draft, manifest, progress)
        for name in DATABASES:
            if (draft / name).exists():
                (draft / name).chmod(0o600)
        _move_records(draft / DATABASES[0], manifest.state_dir, str(state_dir.absolute()))
        with suppress(FileNotFoundError):
            state_dir.rmdir()
        draft.rename(state_dir)
    except (tarfile.TarError, EOFError, OSError, sqlite3.Error) as error:
        raise Invalid(
            f"{file} cannot be restored: {error}", op="restore", remedy="is it a whole file of `hutch backup`?"
        ) from error
    finally:
        if draft.exists():
            shutil.rmtree(draft, ignore_errors=True)
    return manifest


# --- writing ----------------------------------------------------------------------------------------------------------


def _is_left_out(name: str, left_out: frozenset[str]) -> bool:
    beside = {f"{database}{end}" for database in DATABASES for end in ("", "-wal", "-shm", "-journal")}
    return name in left_out or name in beside or name.startswith((".backup-", ".place-"))


def _copied_database(path: Path, place: Path) -> Path:
    copy = place / path.name
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy


class _Packer:
    """Adds trees to an archive, or only counts their bytes.

    Running boxes may change their files meanwhile. Everything is opened by descriptor and through no link: a box that
    puts a link in place of a file or a directory would otherwise get files of this machine into the backup, and from
    there into itself.
    """

    def __init__(self, archive: tarfile.TarFile | None, report: Callable[[int], None] | None = None) -> None:
        self._archive = archive
        self._report = report
        self._linked: dict[tuple[int, int], str] = {}
        """Files with several names, by device and inode."""
        self.done = 0

    def add(self, directory: Path, names: Sequence[str]) -> None:
        """Add these entries of a directory, with everything below them."""
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._add_entries(descriptor, "", names)
        finally:
            os.close(descriptor)

    def _add_entries(self, directory: int, prefix: str, names: Sequence[str]) -> None:
        for name in names:
            try:
                info = os.stat(name, dir_fd=directory, follow_symlinks=False)
                self._add(directory, name, prefix + name, info)
            except FileNotFoundError:  # It was removed meanwhile.
                continue
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    raise  # Otherwise a box has put something else in its place.

    def _add(self, directory: int, name: str, path: str, info: os.stat_result) -> None:
        member = tarfile.TarInfo(path)
        member.mode, member.uid, member.gid = stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid
        member.mtime = info.st_mtime
        if stat.S_ISDIR(info.st_mode):
            member.type = tarfile.DIRTYPE
            with _opened(directory, name, info, os.O_DIRECTORY) as descriptor:
                self._write(member, descriptor)
                self._add_entries(descriptor, f"{path}/", sorted(os.listdir(descriptor)))
        elif stat.S_ISREG(info.st_mode):
            known = self._linked.setdefault((info.st_dev, info.st_ino), path) if info.st_nlink > 1 else path
            if known != path:
                member.type, member.linkname = tarfile.LNKTYPE, known
                self._write(member)
                return
            with _opened(directory, name, info, os.O_NONBLOCK) as descriptor:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return
                member.size = os.fstat(descriptor).st_size
                self._write(member, descriptor)
        elif stat.S_ISLNK(info.st_mode):
            member.type, member.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=directory)
            self._write(member)
        elif stat.S_ISFIFO(info.st_mode) or (stat.S_ISCHR(info.st_mode) and info.st_rdev == 0):
            member.type = tarfile.FIFOTYPE if stat.S_ISFIFO(info.st_mode) else tarfile.CHRTYPE
            self._write(member)

    def _write(self, member: tarfile.TarInfo, descriptor: int | None = None) -> None:
        self.done += member.size
        if self._archive is None:
            return
        if descriptor is None:
            self._archive.addfile(member)
            return
        member.pax_headers = {
            XATTR + name: os.getxattr(descriptor, name).decode("utf-8", "surrogateescape")
            for name in os.listxattr(descriptor)
        }
        with os.fdopen(os.dup(descriptor), "rb") if member.isreg() else nullcontext() as content:
            self._archive.addfile(member, _Exactly(content, member.size) if content is not None else None)
        if self._report is not None:
            self._report(self.done)


@contextmanager
def _opened(directory: int, name: str, info: os.stat_result, flags: int) -> Iterator[int]:
    """Open an entry for reading. One of this user's own that forbids it even to him is opened up meanwhile."""
    flags |= os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    needed = 0o500 if stat.S_ISDIR(info.st_mode) else 0o400
    locked: int | None = None
    if info.st_uid == os.geteuid() != 0 and info.st_mode & needed != needed:
        locked = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        if not stat.S_ISLNK(os.fstat(locked).st_mode):
            os.chmod(f"/proc/self/fd/{locked}", stat.S_IMODE(info.st_mode) | needed)
    try:
        descriptor = os.open(name, flags, dir_fd=directory)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    finally:
        if locked is not None:
            if not stat.S_ISLNK(os.fstat(locked).st_mode):
                os.chmod(f"/proc/self/fd/{locked}", stat.S_IMODE(info.st_mode))
            os.close(locked)


def _add_bytes(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = len(data), int(time.time()), 0o600
    archive.addfile(info, io.BytesIO(data))


class _Exactly(io.RawIOBase):
    """As many bytes of a file as it had when its size was read: a box may cut it meanwhile."""

    def __init__(self, content: IO[bytes], size: int) -> None:
        self._content = content
        self._left = size

    def read(self, count: int = -1) -> bytes:
        wanted = self._left if count < 0 else min(count, self._left)
        data = self._content.read(wanted).ljust(wanted, b"\0")
        self._left -= wanted
        return data


# --- reading ----------------------------------------------------------------------------------------------------------


def _manifest(archive: tarfile.TarFile) -> Manifest:
    first = archive.next()
    content = archive.extractfile(first) if first is not None and first.isreg() and first.name == MANIFEST else None
    if first is None or content is None or first.size > MAX_MANIFEST:
        raise Invalid("the file is no backup of Hutch", op="restore", remedy="`hutch backup FILE` writes one")
    plain = json.loads(content.read())
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        version = plain.get("format") if isinstance(plain, dict) else None
        raise Invalid(
            f"the backup has format {version}, and this release knows {FORMAT}", op="restore",
            remedy="restore it with the release that wrote it",
        )  # fmt: skip
    return Manifest.from_plain(plain)


def _extract(archive: tarfile.TarFile, top: Path, manifest: Manifest, progress: Progress | None) -> None:
    """Extract everything below `top`. A member that would lead out of it, or a device, ends the restore."""
    base, done = os.path.realpath(top), 0
    # Members are checked here. The interpreter's own filters, where it has some, would refuse an overlay's whiteouts.
    trusted: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
    later: list[tarfile.TarInfo] = []
    for member in archive:
        if member.name == MANIFEST:
            continue
        _check_member(member, base)
        done += member.size if member.isreg() else 0
        if done > manifest.size + MAX_GROWTH:
            raise Invalid("the backup holds more than it says", op="restore")
        archive.extract(member, top, set_attrs=not member.isdir(), numeric_owner=True, **trusted)
        if member.isdir() or any(name.startswith(XATTR) for name in member.pax_headers):
            later.append(member)
        if progress is not None:
            progress(min(done, manifest.size), manifest.size)
    for member in reversed(later):  # A directory's own mode may forbid to fill it, so it comes after its content.
        _set_attributes(archive, member, top / member.name)


def _set_attributes(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    for name, value in member.pax_headers.items():
        # An ordinary user may not set attributes of the kernel, and has none in his backups.
        if name.startswith(XATTR):
            with suppress(PermissionError):
                data = value.encode("utf-8", "surrogateescape")
                os.setxattr(path, name.removeprefix(XATTR), data, follow_symlinks=False)
    if member.isdir():
        archive.chown(member, str(path), True)
        archive.utime(member, str(path))
        archive.chmod(member, str(path))


def _check_member(member: tarfile.TarInfo, base: str) -> None:
    """Refuse names that leave the directory, also through a link that the archive made itself, and devices."""
    parts = Path(member.name).parts
    whiteout = member.ischr() and (member.devmajor, member.devminor) == (0, 0)
    allowed = member.isreg() or member.isdir() or member.issym() or member.islnk() or member.isfifo() or whiteout
    parent = os.path.realpath(os.path.join(base, *parts[:-1]))
    inside = parent == base or parent.startswith(base + os.sep)
    if not parts or member.name.startswith("/") or ".." in parts or not allowed or not inside:
        raise Invalid(f"the backup has a member that is not allowed: {member.name[:200]!r}", op="restore")
    if member.islnk():
        target = os.path.realpath(os.path.join(base, member.linkname))
        if ".." in Path(member.linkname).parts or not target.startswith(base + os.sep):
            raise Invalid(f"the backup has a link that leads out of it: {member.name[:200]!r}", op="restore")


def _move_records(database: Path, old: str, new: str) -> None:
    """Let the records of boxes and volumes name the directory in which they are now."""
    if old == new or not database.exists():
        return
    with closing(sqlite3.connect(database)) as db, db:
        for table, keys in (("boxes", ("id",)), ("notes", ("kind", "key"))):
            where = " AND ".join(f"{key} = ?" for key in keys)
            for *values, body in db.execute(f"SELECT {', '.join(keys)}, body FROM {table}").fetchall():
                try:
                    plain = json.loads(body)
                except ValueError:
                    continue  # A note that is no JSON names no path.
                moved = json.dumps(_moved(plain, old, new)).encode()
                if moved != json.dumps(plain).encode():
                    db.execute(f"UPDATE {table} SET body = ? WHERE {where}", (moved, *values))


def _moved(value: Any, old: str, new: str) -> Any:
    if isinstance(value, str):
        return new + value[len(old) :] if value == old or value.startswith(old + "/") else value
    if isinstance(value, list):
        return [_moved(each, old, new) for each in value]
    if isinstance(value, dict):
        return {name: _moved(each, old, new) for name, each in value.items()}
    return value
