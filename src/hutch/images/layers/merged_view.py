"""The merged view of an image's layers, as a box would see it; links are followed inside the image only."""

import os
import stat
from collections.abc import Sequence
from typing import NamedTuple

from hutch.images.layers.unpack import OPAQUE

_MAX_LINKS = 40


class Found(NamedTuple):
    """A file of the image: its path inside without links, and its path on the host."""

    inside: str
    path: str
    mode: int


def find(layers: Sequence[str], name: str) -> Found | None:
    """Find a file in `layers`, topmost first. Returns None if the image has none of that name."""
    rest = [part for part in name.split("/") if part not in ("", ".")]
    walked: list[str] = []
    links = 0
    found: Found | None = Found("", layers[0], stat.S_IFDIR) if layers else None
    while rest:
        part = rest.pop(0)
        if part == "..":
            walked = walked[:-1]
            continue
        found = _entry(layers, "/".join((*walked, part)))
        if found is None:
            return None
        if stat.S_ISLNK(found.mode):
            links += 1
            if links > _MAX_LINKS:
                return None
            target = os.readlink(found.path)
            walked = [] if target.startswith("/") else walked
            rest = [each for each in target.split("/") if each not in ("", ".")] + rest
        elif rest and not stat.S_ISDIR(found.mode):
            return None
        else:
            walked.append(part)
    return found if found is None or found.inside == "/".join(walked) else _entry(layers, "/".join(walked))


def read(layers: Sequence[str], name: str, limit: int = 1 << 20) -> str:
    """Read a small text file; empty if there is none."""
    found = find(layers, name)
    if found is None or not stat.S_ISREG(found.mode):
        return ""
    try:
        fd = os.open(found.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except PermissionError:
        return ""
    with os.fdopen(fd, "rb") as file:
        return file.read(limit).decode("utf-8", "surrogateescape")


def resolve(layers: Sequence[str], name: str) -> str:
    """Return the path without links of a name that need not exist; links are followed as far as it does."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    for count in range(len(parts), 0, -1):
        found = find(layers, "/".join(parts[:count]))
        if found is not None:
            return "/".join((*filter(None, [found.inside]), *parts[count:]))
    return "/".join(parts)


def _entry(layers: Sequence[str], name: str) -> Found | None:
    """Search the layers until one has the name or hides it; the directories above must not be links."""
    if not name:
        return Found("", layers[0], stat.S_IFDIR)
    parts = name.split("/")
    for layer in layers:
        path = layer
        hidden = False
        for depth, part in enumerate(parts):
            path = os.path.join(path, part)
            try:
                mode = os.lstat(path)
            except OSError:
                break
            if stat.S_ISCHR(mode.st_mode) and mode.st_rdev == 0:
                return None
            if depth == len(parts) - 1:
                return Found(name, path, mode.st_mode)
            if not stat.S_ISDIR(mode.st_mode):
                return None  # a file or a link hides what lower layers have below it
            hidden = hidden or _is_opaque(path)
        if hidden:
            return None
    return None


def _is_opaque(path: str) -> bool:
    try:
        return os.getxattr(path, OPAQUE, follow_symlinks=False) == b"y"
    except OSError:
        return False


BOX_USER = 1000


def box_user(user: str, layers: Sequence[str]) -> str:
    """Return an image's USER as a user of a box: "user", "root" or a number; empty if there is none or it is unusable.

    Names are looked up in the image's own /etc/passwd. The group is ignored: a box's user has the group of its own
    number.
    """
    name = user.partition(":")[0]
    if not name:
        return ""
    number = int(name) if name.isascii() and name.isdigit() else _user_number(name, layers)
    if number is None or number >= 65536:
        return ""
    return {0: "root", BOX_USER: "user"}.get(number, str(number))


def _user_number(name: str, layers: Sequence[str]) -> int | None:
    if name == "root":
        return 0
    for row in read(layers, "etc/passwd").splitlines():
        fields = row.split(":")
        if len(fields) > 2 and fields[0] == name and fields[2].isascii() and fields[2].isdigit():
            return int(fields[2])
    return None
