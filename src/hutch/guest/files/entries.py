"""Entries of a tree with more than `stat` reports: where links lead, and extended attributes."""

import json
import os
import stat as modes
import time
from collections.abc import Generator

from hutch.guest.files.basic import describe_at
from hutch.guest.files.paths import locate, open_file, prefix_of, request_path
from hutch.guest.operations import STEP_SECONDS, Failure, Operation, Reply, Request, Steps, failure, number_field

MAX_ENTRIES = 100_000
MAX_DEPTH = 64
MAX_ATTRIBUTE_BYTES = 4096
"""Attributes of one file beyond this are left out."""


def entries(request: Request, workdir: str) -> Steps:
    """Send lines of JSON: the path itself with `depth` 0, else what is below it, each directory before its content.

    `attributes` is the prefix of the extended attributes to send, without which none are.
    """
    path, prefix = request_path(request), str(request.get("attributes") or "")
    depth = min(number_field(request, "depth", 0), MAX_DEPTH)
    if not depth:
        with locate(path, workdir, "look at") as location:
            yield _line(_describe(path, location.name, location.directory, prefix))
        return {}
    try:
        directory = open_file(path, os.O_RDONLY | os.O_DIRECTORY, workdir)
    except OSError as error:
        raise failure(error, "list", path) from None
    try:
        walk = _Walk(prefix)
        yield from walk.below(path, directory, depth)
        yield walk.take()
        return {}
    finally:
        os.close(directory)


class _Walk:
    """Collects the lines of a tree, and sends them in pieces."""

    def __init__(self, attributes: str) -> None:
        self._attributes = attributes
        self._lines: list[bytes] = []
        self._count = 0
        self._pause = time.monotonic() + STEP_SECONDS

    def take(self) -> bytes:
        lines, self._lines = b"".join(self._lines), []
        return lines

    def below(self, path: str, directory: int, depth: int) -> Generator[bytes, None, None]:
        above = prefix_of(path)
        for name in sorted(os.listdir(directory)):
            self._count += 1
            if self._count > MAX_ENTRIES:
                raise Failure("too_large", f"there are over {MAX_ENTRIES} entries", remedy="list less at once")
            try:
                described = _describe(above + name, name, directory, self._attributes)
            except OSError:
                continue  # removed since it was listed
            self._lines.append(_line(described))
            if time.monotonic() >= self._pause:
                yield self.take()
                self._pause = time.monotonic() + STEP_SECONDS
            if depth > 1 and described["kind"] == "directory":
                try:
                    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                    inner = os.open(name, flags, dir_fd=directory)
                except OSError:
                    continue  # not readable, or replaced meanwhile
                try:
                    yield from self.below(above + name, inner, depth - 1)
                finally:
                    os.close(inner)


def _line(described: Reply) -> bytes:
    return json.dumps(described).encode() + b"\n"


def _describe(path: str, name: str, directory: int, prefix: str) -> Reply:
    described = describe_at(path, name, directory)
    leads_to = leads_to_kind = None
    if described["kind"] == "symlink":
        leads_to = os.path.realpath(f"/proc/self/fd/{directory}/{name}")
        try:
            mode = os.stat(name, dir_fd=directory).st_mode
            leads_to_kind = "directory" if modes.S_ISDIR(mode) else "file" if modes.S_ISREG(mode) else "other"
        except OSError:
            leads_to_kind = None  # it leads nowhere
    found = read_attributes(f"/proc/self/fd/{directory}/{name}", prefix) if prefix and leads_to is None else {}
    return {**described, "leads_to": leads_to, "leads_to_kind": leads_to_kind, "attributes": found}


def read_attributes(path: str | int, prefix: str) -> dict[str, str]:
    """Return the extended attributes whose names begin so, without the prefix. A file system may have none at all."""
    found: dict[str, str] = {}
    size = 0
    try:
        for name in os.listxattr(path):
            if name.startswith(prefix):
                value = os.getxattr(path, name)
                size += len(name) + len(value)
                if size > MAX_ATTRIBUTE_BYTES:
                    break
                found[name.removeprefix(prefix)] = value.decode("utf-8", "replace")
    except OSError:
        return found
    return found


def write_attributes(descriptor: int, prefix: str, wanted: dict[str, str]) -> None:
    """Replace the extended attributes whose names begin so. Nothing is written where nothing changes."""
    now = read_attributes(descriptor, prefix)
    for name in now.keys() - wanted.keys():
        os.removexattr(descriptor, prefix + name)
    for name, value in wanted.items():
        if now.get(name) != value:
            os.setxattr(descriptor, prefix + name, value.encode("utf-8", "surrogateescape"))


OPERATIONS: dict[str, Operation] = {"files.entries": entries}
