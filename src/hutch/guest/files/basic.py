"""Basic file operations: stat, list, read, digest, mkdir, move, remove, and copying trees in and out."""

import errno
import json
import os
import stat as modes
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from hutch.guest.files.paths import (
    Location,
    locate,
    locate_target,
    make_directories,
    open_file,
    open_regular,
    prefix_of,
    rename_noreplace,
    request_path,
    temporary_name,
)
from hutch.guest.files.removal import remove_tree
from hutch.guest.files.trees import Unpacker, pack
from hutch.guest.operations import (
    BLOCK,
    STEP_SECONDS,
    Failure,
    Operation,
    Reply,
    Request,
    Steps,
    failure,
    number_field,
    optional_number_field,
)

MAX_ENTRIES = 200_000
"""Largest directory that `list` answers; the names are sorted, so all of them are in memory at once."""

# `hashlib` loads OpenSSL, which would take a twelfth of a spawner's start. The interpreter's own code gives the same
# digests.
sha256: Any
try:
    from _sha2 import sha256  # type: ignore[import-not-found, no-redef]  # since Python 3.12
except ImportError:
    try:
        from _sha256 import sha256  # type: ignore[import-not-found, no-redef]
    except ImportError:
        sha256 = None


def load_openssl() -> None:
    """Use OpenSSL for digests from now on, which is five times as fast.

    Its first use loads the library, which must happen while that can still be found on disk.
    """
    global sha256
    import hashlib

    hashlib.sha256()
    sha256 = hashlib.sha256


if sha256 is None:
    load_openssl()


def describe(path: str, info: os.stat_result, target: str | None = None) -> Reply:
    kind = "other"
    if modes.S_ISREG(info.st_mode):
        kind = "file"
    elif modes.S_ISDIR(info.st_mode):
        kind = "directory"
    elif modes.S_ISLNK(info.st_mode):
        kind = "symlink"
    return {
        "path": path, "kind": kind, "size": info.st_size, "mode": modes.S_IMODE(info.st_mode), "uid": info.st_uid,
        "gid": info.st_gid, "mtime": info.st_mtime_ns / 1e9, "target": target,
    }  # fmt: skip


def describe_at(path: str, name: str, directory: int) -> Reply:
    info = os.stat(name, dir_fd=directory, follow_symlinks=False)
    target = os.readlink(name, dir_fd=directory) if modes.S_ISLNK(info.st_mode) else None
    return describe(path, info, target)


def stat(request: Request, workdir: str) -> Reply:
    path = request_path(request)
    with locate(path, workdir, "look at") as location:
        return describe_at(path, location.name, location.directory)


def exists(request: Request, workdir: str) -> Reply:
    """Follow symlinks, like os.path.exists; a directory that may not be searched is an error."""
    path = request_path(request)
    try:
        os.close(open_file(path, os.O_PATH, workdir))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
            return {"exists": False}
        raise failure(error, "look at", path) from None
    return {"exists": True}


def list_directory(request: Request, workdir: str) -> Steps:
    """Send the entries as lines of JSON, sorted by name."""
    path = request_path(request)
    try:
        directory = open_file(path, os.O_RDONLY | os.O_DIRECTORY, workdir)
    except OSError as error:
        raise failure(error, "list", path) from None
    try:
        names = _names(directory, path)
        prefix = prefix_of(path)
        lines: list[str] = []
        for position, name in enumerate(names):
            try:
                lines.append(json.dumps(describe_at(prefix + name, name, directory)))
            except FileNotFoundError:
                continue  # removed since it was listed
            except OSError as error:
                raise failure(error, "look at", prefix + name) from None
            if position % 256 == 255:
                yield _encode_lines(lines)
                lines.clear()
        if lines:
            yield _encode_lines(lines)
        return {}
    finally:
        os.close(directory)


def _names(directory: int, path: str) -> list[str]:
    names: list[str] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            names.append(entry.name)
            if len(names) > MAX_ENTRIES:
                raise Failure(
                    "too_large", f"{path!r} has more than {MAX_ENTRIES} entries", remedy="use glob with a pattern"
                )
    names.sort()
    return names


def _encode_lines(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()


# --- content --------------------------------------------------------------------------------------------------


def read(request: Request, workdir: str) -> Steps:
    """Send a range of the content. A file larger than `bound` fails before it is sent."""
    path = request_path(request)
    offset = number_field(request, "offset", 0)
    limit = optional_number_field(request, "limit")
    bound = optional_number_field(request, "bound")
    descriptor = open_regular(path, workdir)
    try:
        size = os.fstat(descriptor).st_size
        if bound is not None and size - offset > bound:
            raise _too_large(path, size, bound)
        if offset:
            os.lseek(descriptor, offset, os.SEEK_SET)
        sent = 0
        while limit is None or sent < limit:
            block = os.read(descriptor, BLOCK if limit is None else min(BLOCK, limit - sent))
            if not block:
                break
            sent += len(block)
            # Files of /proc have no size, and others grow while they are read.
            if bound is not None and sent > bound:
                raise _too_large(path, sent, bound)
            yield block
        return {"sent": sent, "size": size}
    except OSError as error:
        raise failure(error, "read", path) from None
    finally:
        os.close(descriptor)


def _too_large(path: str, size: int, bound: int) -> Failure:
    return Failure(
        "too_large", f"{path!r} has {size} bytes, over the {bound} that one call returns",
        remedy="read a range of it, or open it and read it in pieces", size=size, limit=bound,
    )  # fmt: skip


def lines(request: Request, workdir: str) -> Steps:
    """Send whole lines from line `start` on. Lines end with LF; a CR before it belongs to the line."""
    path = request_path(request)
    start = number_field(request, "start", 1, least=1)
    count = number_field(request, "count", 2000, least=1)
    bound = number_field(request, "bound", 64 << 20, least=1)
    descriptor = open_regular(path, workdir)
    try:
        to_skip, to_send, sent = start - 1, count, 0
        while block := os.read(descriptor, BLOCK):
            begin, to_skip = _after_lines(block, 0, to_skip)
            if to_skip:
                yield None
                continue
            end, to_send = _after_lines(block, begin, to_send)
            sent += end - begin
            if sent > bound:
                raise _too_large(path, sent, bound)
            if end > begin:
                yield block[begin:end]
            if not to_send:
                return {"eof": end == len(block) and not os.read(descriptor, 1)}
        return {"eof": True}
    except OSError as error:
        raise failure(error, "read", path) from None
    finally:
        os.close(descriptor)


def _after_lines(block: bytes, position: int, wanted: int) -> tuple[int, int]:
    """Return where the `wanted`-th line after `position` ends, and how many lines are missing after the block."""
    while wanted:
        found = block.find(b"\n", position)
        if found < 0:
            return len(block), wanted
        position = found + 1
        wanted -= 1
    return position, 0


def digest(request: Request, workdir: str) -> Steps:
    path = request_path(request)
    descriptor = open_regular(path, workdir)
    try:
        total = sha256()
        while block := os.read(descriptor, BLOCK):
            total.update(block)
            yield None
        return {"digest": total.hexdigest()}
    except OSError as error:
        raise failure(error, "read", path) from None
    finally:
        os.close(descriptor)


# --- names ----------------------------------------------------------------------------------------------------


def mkdir(request: Request, workdir: str) -> Reply:
    path = request_path(request)
    with locate(path, workdir, "make directory", parents=bool(request.get("parents"))) as location:
        try:
            os.mkdir(location.name, dir_fd=location.directory)
        except FileExistsError:
            if not request.get("exist_ok"):
                raise
            make_directories(location.directory, location.name)  # fails if it is no directory
    return {}


def remove(request: Request, workdir: str) -> Steps:
    path = request_path(request)
    if request.get("missing_ok") and not _exists(path, workdir):
        return {}
    with locate(path, workdir, "remove") as location:
        info = os.stat(location.name, dir_fd=location.directory, follow_symlinks=False)
        if location.name == ".":
            raise Failure("invalid", f"cannot remove {path!r}: name the directory itself, not a dot")
        if not modes.S_ISDIR(info.st_mode):
            os.unlink(location.name, dir_fd=location.directory)
        elif request.get("recursive"):
            yield from in_slices(remove_tree(location.directory, location.name))
        else:
            os.rmdir(location.name, dir_fd=location.directory)
    return {}


def _exists(path: str, workdir: str) -> bool:
    try:
        with locate(path, workdir, "remove") as location:
            return location.lstat() is not None
    except Failure as error:
        if error.code == "file_not_found":
            return False
        raise


def move(request: Request, workdir: str) -> Steps:
    source, target = request_path(request, "source"), request_path(request, "target")
    with (
        locate(source, workdir, "move") as old,
        locate(target, workdir, f"move {source!r} to", parents=True) as new,
    ):
        try:
            if request.get("overwrite"):
                os.rename(old.name, new.name, src_dir_fd=old.directory, dst_dir_fd=new.directory)
            else:
                rename_noreplace(old, new)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        else:
            return {}
        # The target is on another mount, or the source is a directory of an overlay's lower layer.
        if not request.get("overwrite") and new.lstat() is not None:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
        yield from _move_by_copy(old, new)
        yield from in_slices(remove_tree(old.directory, old.name))
    return {}


def _move_by_copy(old: Location, new: Location) -> Steps:
    """Copy to a temporary name beside the target, then rename, so that the target appears whole or not at all."""
    draft = new._replace(name=temporary_name())
    unpacker = Unpacker(draft.directory, draft.name)
    try:
        info = os.stat(old.name, dir_fd=old.directory, follow_symlinks=False)
        if modes.S_ISLNK(info.st_mode):
            os.symlink(os.readlink(old.name, dir_fd=old.directory), draft.name, dir_fd=draft.directory)
        else:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            for block in pack(os.open(old.name, flags, dir_fd=old.directory), old.path):
                if block is not None:
                    unpacker.data(block)
                yield None
            report = unpacker.end()
            if report["skipped"]:
                raise Failure(
                    "file_failed", f"cannot move {old.path!r} to another filesystem: {report['skipped'][0]} is a "
                    "special file, which cannot be copied", errno=errno.EXDEV, name="EXDEV", path=old.path,
                )  # fmt: skip
        os.rename(draft.name, new.name, src_dir_fd=draft.directory, dst_dir_fd=new.directory)
    except BaseException:  # also GeneratorExit: the caller is gone, and half a copy must not stay
        unpacker.abort()
        if draft.lstat() is not None:
            for _ in remove_tree(draft.directory, draft.name):
                pass
        raise
    return {}


def in_slices(work: Iterator[None]) -> Steps:
    """Return to the loop regularly during long work."""
    pause = time.monotonic() + STEP_SECONDS
    for _ in work:
        if time.monotonic() >= pause:
            yield None
            pause = time.monotonic() + STEP_SECONDS
    return {}


def pack_request(request: Request, workdir: str) -> Steps:
    path = request_path(request)
    try:
        top = open_file(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, workdir)
    except OSError as error:
        raise failure(error, "copy", path) from None
    info = os.fstat(top)
    if not modes.S_ISREG(info.st_mode) and not modes.S_ISDIR(info.st_mode):
        os.close(top)
        raise Failure("file_failed", f"cannot copy {path!r}: it is neither a file nor a directory", path=path)
    yield from pack(top, path)
    return {}


class Unpack:
    """Unpacks a tree from the host to `path`, creating its parents."""

    def __init__(self, request: Request, workdir: str) -> None:
        path = request_path(request)
        self._held = ExitStack()
        location = self._held.enter_context(locate_target(path, workdir, "copy to", parents=True))
        self._unpacker = Unpacker(location.directory, location.name, str(request.get("into") or ""))

    def data(self, content: bytes) -> None:
        self._unpacker.data(content)

    def end(self) -> Reply:
        try:
            return self._unpacker.end()
        finally:
            self._held.close()

    def abort(self) -> None:
        self._unpacker.abort()
        self._held.close()


OPERATIONS: dict[str, Operation] = {
    "files.stat": stat,
    "files.exists": exists,
    "files.list": list_directory,
    "files.read": read,
    "files.lines": lines,
    "files.digest": digest,
    "files.mkdir": mkdir,
    "files.remove": remove,
    "files.move": move,
    "files.pack": pack_request,
    "files.unpack": Unpack,
}
