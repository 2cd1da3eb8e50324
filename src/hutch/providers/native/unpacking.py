"""Unpack an image archive once, into a directory named by the archive's digest.

The archive is not trusted: no name leaves the directory, no link is followed while writing, devices are left out, and
set-user-id bits are kept only because boxes mount images nosuid and nobody else can enter the cache.
"""

import hashlib
import os
import shutil
import stat
import tarfile
import tempfile

from hutch.errors import Invalid
from hutch.providers.native import kernel

_ALLOWED = kernel.RESOLVE_BENEATH | kernel.RESOLVE_NO_SYMLINKS | kernel.RESOLVE_NO_MAGICLINKS


def unpack(archive: str, cache: str) -> str:
    """The directory; unpacked if it is not there yet."""
    with open(archive, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:32]
    final = os.path.join(cache, digest)
    if os.path.isdir(final):
        return final
    # Closed to others: on the host a set-user-id file of the archive would be just that.
    os.makedirs(cache, 0o700, exist_ok=True)
    draft = tempfile.mkdtemp(dir=cache, prefix=".unpacking-")
    try:
        _unpack_into(archive, draft)
        os.chmod(draft, 0o755)
        try:
            os.rename(draft, final)
        except OSError:
            if not os.path.isdir(final):  # else another keeper was faster
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return final


def _unpack_into(archive: str, draft: str) -> None:
    top = os.open(draft, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    directories: list[tuple[str, tarfile.TarInfo]] = []
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = _clean(member.name)
                if not name:
                    continue
                if member.isdir():
                    directories.append((name, member))
                _place(tar, member, name, top)
        for name, member in reversed(directories):
            _dress(top, name, member)  # last: a directory without write permission could not be filled
    except tarfile.TarError as error:
        raise Invalid(f"{archive} is not a readable archive: {error}", op="create") from error
    finally:
        os.close(top)


def _clean(name: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise Invalid(f"the archive holds a name that leaves it: {name!r}", op="create")
    return "/".join(parts)


def _place(tar: tarfile.TarFile, member: tarfile.TarInfo, name: str, top: int) -> None:
    above, _, last = name.rpartition("/")
    parent = _enter(top, above)
    try:
        if not member.isdir():
            _clear(parent, last)
        if member.isdir():
            if not _exists_as_directory(parent, last):
                os.mkdir(last, 0o700, dir_fd=parent)
        elif member.issym():
            os.symlink(member.linkname, last, dir_fd=parent)
            _own(parent, last, member)
        elif member.islnk():
            _link(top, _clean(member.linkname), parent, last)
        elif member.isreg():
            _write(tar, member, parent, last)
        elif member.isfifo():
            os.mkfifo(last, member.mode & 0o7777, dir_fd=parent)
        # Devices are left out: a box has its own /dev, and an ordinary user could not make them.
    finally:
        os.close(parent)


def _enter(top: int, path: str) -> int:
    """The directory, made where an archive forgot to list it."""
    if not path:
        return os.dup(top)
    try:
        return kernel.openat2(top, path, os.O_PATH | os.O_DIRECTORY, _ALLOWED)
    except FileNotFoundError:
        above, _, last = path.rpartition("/")
        parent = _enter(top, above)
        os.mkdir(last, 0o755, dir_fd=parent)
        os.close(parent)
        return kernel.openat2(top, path, os.O_PATH | os.O_DIRECTORY, _ALLOWED)
    except OSError as error:
        raise Invalid(
            f"the archive writes through a link or a file: {path!r} ({error.strerror})", op="create"
        ) from error


def _exists_as_directory(parent: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _clear(parent: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass
    except IsADirectoryError as error:
        raise Invalid(f"the archive replaces a directory by a file: {name!r}", op="create") from error


def _link(top: int, target: str, parent: int, name: str) -> None:
    above, _, last = target.rpartition("/")
    source = _enter(top, above)
    try:
        os.link(last, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
    finally:
        os.close(source)


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, parent: int, name: str) -> None:
    content = tar.extractfile(member)
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=parent)
    with os.fdopen(fd, "wb") as file:
        if content is not None:
            shutil.copyfileobj(content, file, 1 << 20)
        if os.geteuid() == 0:
            os.fchown(file.fileno(), member.uid, member.gid)
        os.fchmod(file.fileno(), member.mode & 0o7777 | (0 if os.geteuid() == 0 else 0o400))


def _own(parent: int, name: str, member: tarfile.TarInfo) -> None:
    if os.geteuid() == 0:
        os.chown(name, member.uid, member.gid, dir_fd=parent, follow_symlinks=False)


def _dress(top: int, name: str, member: tarfile.TarInfo) -> None:
    """Owner and mode of a directory. An ordinary user keeps the right to remove it again."""
    fd = kernel.openat2(top, name, os.O_RDONLY | os.O_DIRECTORY, _ALLOWED)
    try:
        if os.geteuid() == 0:
            os.fchown(fd, member.uid, member.gid)
        os.fchmod(fd, member.mode & 0o7777 | (0 if os.geteuid() == 0 else 0o700))
    finally:
        os.close(fd)
