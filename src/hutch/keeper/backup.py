"""A state directory as one file and back: records, receipts, keys, volumes, skills, images, files of persistent boxes.

The file is a compressed tar archive whose first member is a manifest. Databases are copied by SQLite itself, so a
backup of a directory in use is consistent. A backup holds the state's key and every box's files: whoever has it has
all of that. What can be made again (caches), and what belongs to running processes (locks, sockets), is left out.
"""

import io
import json
import os
import secrets
import shutil
import sqlite3
import stat
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any

import hutch
from hutch.config import directories
from hutch.errors import Conflict, FileFailed, Invalid, Unavailable
from hutch.model.record import Record
from hutch.model.sizes import format_bytes

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
        found = list(_walk(state_dir, left_out))
        databases = [_copied_database(state_dir / name, copies) for name in DATABASES if (state_dir / name).is_file()]
        size = sum(info.st_size for _, info in found if stat.S_ISREG(info.st_mode))
        size += sum(copy.stat().st_size for copy in databases)
        manifest = Manifest(
            format=FORMAT, version=hutch.__version__, created_at=time.time(), state_dir=str(state_dir.resolve()),
            size=size, images=images,
        )  # fmt: skip
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as raw:
            with tarfile.open(fileobj=raw, mode="w:gz", compresslevel=1, format=tarfile.PAX_FORMAT) as archive:
                _add_bytes(archive, MANIFEST, manifest.to_json())
                done = 0
                for copy in databases:
                    done += _add(archive, copy, copy.name)
                for path, _ in found:
                    done += _add(archive, path, str(path.relative_to(state_dir)))
                    if progress is not None:
                        progress(min(done, size), size)
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


def _walk(top: Path, left_out: frozenset[str]) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield everything below the state directory, directories before what is in them. Links are not followed."""
    beside = {f"{name}{end}" for name in DATABASES for end in ("", "-wal", "-shm", "-journal")}
    for path in sorted(top.iterdir()):
        if path.name in left_out or path.name in beside or path.name.startswith((".backup-", ".place-")):
            continue
        yield from _below(path)


def _below(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    try:
        info = path.lstat()
    except FileNotFoundError:  # A box ended while its directory was read.
        return
    yield path, info
    if stat.S_ISDIR(info.st_mode):
        with suppress(FileNotFoundError):
            for child in sorted(path.iterdir()):
                yield from _below(child)


def _copied_database(path: Path, place: Path) -> Path:
    copy = place / path.name
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy


def _add(archive: tarfile.TarFile, path: Path, name: str) -> int:
    """Add one file, directory or link; return its bytes. What is gone by now, and sockets, are left out."""
    try:
        info = archive.gettarinfo(path, name)
        if info is None:
            return 0
        info.pax_headers = {
            XATTR + attribute: os.getxattr(path, attribute, follow_symlinks=False).decode("utf-8", "surrogateescape")
            for attribute in os.listxattr(path, follow_symlinks=False)
        }
        if not info.isreg():
            archive.addfile(info)
            return 0
        with path.open("rb") as content:
            archive.addfile(info, _Exactly(content, info.size))
        return info.size
    except FileNotFoundError:
        return 0


def _add_bytes(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = len(data), int(time.time()), 0o600
    archive.addfile(info, io.BytesIO(data))


class _Exactly(io.RawIOBase):
    """As many bytes of a file as it had when it was looked at: a box may cut it meanwhile."""

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
        told = plain.get("format") if isinstance(plain, dict) else None
        raise Invalid(
            f"the backup has format {told}, and this release knows {FORMAT}", op="restore",
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
