"""Writing files so that a reader sees the old content or the new, never half of it: write, append, edit."""

import os
import stat as modes
from collections.abc import Generator
from contextlib import ExitStack, suppress

from hutch.guest.files import basic
from hutch.guest.files.entries import write_attributes
from hutch.guest.files.paths import Location, locate_target, open_at, request_path, require_regular, temporary_name
from hutch.guest.operations import (
    BLOCK,
    Consumer,
    Failure,
    Operation,
    Reply,
    Request,
    Steps,
    failure,
    number_field,
    optional_number_field,
)

MAX_EDIT = 64 << 20
"""Largest file that `edit` changes."""
MAX_TEXTS = 8 << 20
"""Largest size of an edit's old and new text together."""
_NEW_MODE = 0o666  # the umask is subtracted
_SPECIAL_BITS = 0o6000  # setuid and setgid, which the kernel itself drops when content changes


class Draft:
    """A temporary file beside the location that it will replace."""

    def __init__(self, location: Location, mode: int | None) -> None:
        self._place = location
        self._name = temporary_name()
        old = location.lstat()
        if old is not None:
            require_regular(old, "write", location.path)
            # Replacing needs no permission on the file itself, but a file that its user made read-only should stay.
            if not os.access(location.name, os.W_OK, dir_fd=location.directory):
                raise PermissionError(13, "not writable")
        first = _NEW_MODE if old is None else modes.S_IMODE(old.st_mode) & ~_SPECIAL_BITS
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        self.descriptor = open_at(location.directory, self._name, flags, first)
        try:
            if old is not None and (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                # Only root may change the owner; for others the new file belongs to them, as with any editor.
                with suppress(PermissionError):
                    os.fchown(self.descriptor, old.st_uid, old.st_gid)
            if mode is not None or old is not None:
                os.fchmod(self.descriptor, first if mode is None else mode)
        except BaseException:
            self.discard()
            raise

    def write(self, content: bytes) -> None:
        write_all(self.descriptor, content)

    def publish(self, sync: bool) -> os.stat_result:
        if sync:
            os.fsync(self.descriptor)
        directory = self._place.directory
        os.rename(self._name, self._place.name, src_dir_fd=directory, dst_dir_fd=directory)
        info = os.fstat(self.descriptor)
        self._close()
        if sync:
            _sync_directory(directory)
        return info

    def discard(self) -> None:
        self._close()
        with suppress(FileNotFoundError):
            os.unlink(self._name, dir_fd=self._place.directory)

    def _close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _sync_directory(directory: int) -> None:
    # `directory` was opened with O_PATH, which fsync does not accept.
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


class Write:
    """Replaces the content of a file: `path`, `mode`, `sync`, `parents`."""

    def __init__(self, request: Request, workdir: str) -> None:
        self._path = request_path(request)
        self._sync = bool(request.get("sync"))
        self._held = ExitStack()
        parents = bool(request.get("parents"))
        with ExitStack() as held:
            location = held.enter_context(locate_target(self._path, workdir, "write", parents=parents))
            if location.name == ".":
                raise failure(IsADirectoryError(21, ""), "write", self._path)
            self._draft = Draft(location, optional_number_field(request, "mode"))
            self._held = held.pop_all()

    def data(self, content: bytes) -> None:
        try:
            self._draft.write(content)
        except OSError as error:
            raise failure(error, "write", self._path) from None

    def end(self) -> Reply:
        try:
            info = self._draft.publish(self._sync)
        except OSError as error:
            self.abort()
            raise failure(error, "write", self._path) from None
        self._held.close()
        return basic.describe(self._path, info)

    def abort(self) -> None:
        self._draft.discard()
        self._held.close()


class Append:
    """Appends content to a file, which is created if it does not exist."""

    def __init__(self, request: Request, workdir: str) -> None:
        self._path = request_path(request)
        self._sync = bool(request.get("sync"))
        mode = optional_number_field(request, "mode")
        with locate_target(self._path, workdir, "append to", parents=bool(request.get("parents"))) as location:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW
            self._descriptor = open_at(location.directory, location.name, flags, _NEW_MODE)
            try:
                info = os.fstat(self._descriptor)
                require_regular(info, "append to", self._path)
                if mode is not None:
                    os.fchmod(self._descriptor, mode)
                self._prepare(request, info)
            except BaseException:
                os.close(self._descriptor)
                raise

    def _prepare(self, request: Request, info: os.stat_result) -> None:
        """Change what has to change before the first byte is written."""

    def data(self, content: bytes) -> None:
        try:
            write_all(self._descriptor, content)
        except OSError as error:
            raise failure(error, "append to", self._path) from None

    def end(self) -> Reply:
        try:
            if self._sync:
                os.fsync(self._descriptor)
            return basic.describe(self._path, os.fstat(self._descriptor))
        except OSError as error:
            raise failure(error, "append to", self._path) from None
        finally:
            os.close(self._descriptor)

    def abort(self) -> None:
        os.close(self._descriptor)


class Overwrite(Append):
    """Replaces the content of a file in place, so that a program that watches or has opened it sees the same file.

    A reader may see a part of it meanwhile. The file becomes the user's own where that is allowed, and the extended
    `attributes` replace those whose names begin with `attribute_prefix`.
    """

    def _prepare(self, request: Request, info: os.stat_result) -> None:
        with suppress(PermissionError):
            os.fchown(self._descriptor, os.geteuid(), os.getegid())
        if info.st_size:
            os.ftruncate(self._descriptor, 0)
        if prefix := str(request.get("attribute_prefix") or ""):
            wanted = request.get("attributes") or {}
            write_attributes(self._descriptor, prefix, {str(name): str(value) for name, value in wanted.items()})


class Edit:
    """Replaces an exact text: `path`, `old_size`, `replace_all`, `expect`. The content is old text, then new text."""

    def __init__(self, request: Request, workdir: str) -> None:
        self._path = request_path(request)
        self._workdir = workdir
        self._old_size = number_field(request, "old_size", 0, least=1)
        self._replace_all = bool(request.get("replace_all"))
        self._expect = request.get("expect")
        self._given = bytearray()

    def data(self, content: bytes) -> None:
        self._given += content
        if len(self._given) > MAX_TEXTS:
            raise Failure(
                "too_large", f"the texts of an edit are over {MAX_TEXTS} bytes", remedy="write the whole file"
            )

    def end(self) -> Steps:
        with locate_target(self._path, self._workdir, "edit") as location:
            source = open_at(location.directory, location.name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                before = os.fstat(source)
                require_regular(before, "edit", self._path)
                if before.st_size > MAX_EDIT:
                    raise Failure(
                        "too_large", f"{self._path!r} has {before.st_size} bytes, over the {MAX_EDIT} edit can change",
                        remedy="use a command such as sed", size=before.st_size, limit=MAX_EDIT,
                    )  # fmt: skip
                draft = Draft(location, None)
                try:
                    edited = yield from self._replace(source, draft)
                    _check_unchanged(before, location)
                    info = draft.publish(sync=False)
                except BaseException:  # also GeneratorExit: the caller is gone
                    draft.discard()
                    raise
            finally:
                os.close(source)
        return {"path": self._path, "size": info.st_size, **edited}

    def _replace(self, source: int, draft: Draft) -> Generator[None, None, Reply]:
        old, new = bytes(self._given[: self._old_size]), bytes(self._given[self._old_size :])
        if len(old) < self._old_size:
            raise Failure("invalid", "the old text is incomplete")
        before, after = basic.sha256(), basic.sha256()
        found = 0
        carry = b""
        while True:
            block = os.read(source, BLOCK)
            before.update(block)
            parts, carry = _split(carry + block, old, last=not block)
            found += len(parts) - 1
            content = new.join(parts)
            after.update(content)
            draft.write(content)
            if not block:
                break
            yield None
        digest = before.hexdigest()
        if self._expect is not None and digest != self._expect:
            raise Failure(
                "file_changed", f"{self._path!r} is no longer what was read", remedy="read it again", digest=digest
            )
        if found == 0 or (found > 1 and not self._replace_all):
            raise _no_match(self._path, found)
        return {"replaced": found, "digest": after.hexdigest()}

    def abort(self) -> None:
        self._given.clear()


def _split(content: bytes, old: bytes, *, last: bool) -> tuple[list[bytes], bytes]:
    """Return the content between matches, and the rest in which a match may still begin."""
    parts: list[bytes] = content.split(old)
    if last:
        return parts, b""
    # Matches do not overlap, so only what follows the last one can be the beginning of another.
    tail = parts[-1]
    keep = min(len(tail), len(old) - 1)
    parts[-1] = tail[: len(tail) - keep]
    return parts, tail[len(tail) - keep :]


def _no_match(path: str, found: int) -> Failure:
    if found == 0:
        return Failure(
            "no_match", f"the text is not in {path!r}", remedy="read the file and copy the text exactly, spaces too",
            count=0,
        )  # fmt: skip
    return Failure(
        "no_match", f"the text occurs {found} times in {path!r}, not once",
        remedy="give more of the text around it, or use replace_all", count=found,
    )  # fmt: skip


def _check_unchanged(before: os.stat_result, location: Location) -> None:
    now = location.lstat()
    if now is None or (now.st_ino, now.st_size, now.st_mtime_ns) != (before.st_ino, before.st_size, before.st_mtime_ns):
        raise Failure("file_changed", f"{location.path!r} was changed during the edit", remedy="read it again")


def write(request: Request, workdir: str) -> Consumer:
    if request.get("in_place"):
        return Overwrite(request, workdir)
    return Append(request, workdir) if request.get("append") else Write(request, workdir)


OPERATIONS: dict[str, Operation] = {"files.write": write, "files.edit": Edit}
