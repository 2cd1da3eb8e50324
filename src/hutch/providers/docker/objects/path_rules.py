"""Translates paths of Windows and macOS to those that an engine in a virtual machine knows. The functions are pure.

With Docker Desktop the server and the client run on Windows or macOS and the containers in a Linux beside it, which
sees drives and shared directories under names of its own. A path that is refused here never reaches the engine.
"""

import posixpath
import re
from pathlib import PurePosixPath, PureWindowsPath

from hutch.errors import Invalid, Refused

_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?$")
"""The names that Windows gives to devices, whatever the directory and whatever follows a dot."""
_WINDOWS_SYSTEM = frozenset(
    {"windows", "program files", "program files (x86)", "programdata", "system volume information", "$recycle.bin",
     "recovery", "boot", "$windows.~bt", "perflogs", "msocache"}
)  # fmt: skip
_MAC_SYSTEM = ("/System", "/Library", "/Applications", "/bin", "/sbin", "/usr", "/etc", "/dev", "/cores", "/opt",
               "/private/etc", "/private/var", "/var", "/Network")  # fmt: skip
_MAC_OPEN = ("/private/var/folders", "/var/folders")
"""The directories inside the system's own where macOS keeps each user's temporary files."""


def engine_path(path: str, platform: str) -> str:
    """Return the source of a mount as the engine names it. `platform` is as in sys.platform."""
    if platform == "win32":
        return windows(path)
    if platform == "darwin":
        return mac(path)
    return path


def windows(path: str) -> str:
    r"""Return `C:\Users\me\work` as Docker Desktop knows it: `/c/Users/me/work`."""
    if "\0" in path:
        raise Invalid("a path cannot contain a NUL", op="mount")
    plain = path.replace("/", "\\")
    if plain.startswith("\\\\"):
        kind = "a device" if plain[2:3] in ("?", ".") else "a network share"
        raise Refused(f"{path!r} is {kind}: only directories of a drive can be shown in a box", op="mount")
    found = PureWindowsPath(plain)
    if len(found.drive) != 2 or not found.drive[0].isascii() or not found.root:
        raise Invalid(f"{path!r} is no absolute path with a drive letter", op="mount", remedy=r"such as C:\Users\me")
    parts = found.parts[1:]
    if ".." in parts:
        raise Invalid(f"{path!r} goes up: write it plainly", op="mount")
    for part in parts:
        if ":" in part:
            raise Refused(f"{path!r} names a stream of a file", op="mount")
        if _RESERVED.match(part):
            raise Refused(f"{path!r} names a device of Windows", op="mount")
    # Windows ignores dots and spaces at the end of a name: "Windows." is the same place as "Windows".
    first = parts[0].rstrip(". ").casefold() if parts else ""
    if not parts or first in _WINDOWS_SYSTEM or (first == "users" and len(parts) == 1):
        raise Refused(f"{path!r} belongs to the system", op="mount", remedy="mount a directory of your own")
    return str(PurePosixPath("/", found.drive[0].lower(), *parts))


def mac(path: str) -> str:
    """Return the path itself: Docker Desktop shows shared directories under the names they have."""
    if not path.startswith("/") or "\0" in path:
        raise Invalid(f"{path!r} is no absolute path", op="mount")
    plain = posixpath.normpath(path)
    if any(_within(plain, place) and plain != place for place in _MAC_OPEN):
        return plain
    # The file system ignores case, and so does the refusal.
    if plain in ("/", "/Users", "/Volumes", "/private") or any(_within(plain, place) for place in _MAC_SYSTEM):
        raise Refused(f"{path!r} belongs to the system", op="mount", remedy="mount a directory of your own")
    if plain.casefold().endswith((".docker/run", "docker.sock")):
        raise Refused(f"{path!r} leads to the engine itself", op="mount")
    return plain


def _within(path: str, place: str) -> bool:
    return f"{path.casefold()}/".startswith(f"{place.casefold()}/")


def translated(path: str, prefixes: dict[str, str]) -> str:
    """Return the path as the engine names it, by the longest known prefix of ours."""
    for ours in sorted(prefixes, key=len, reverse=True):
        below = path.removeprefix(ours.rstrip("/"))
        if path == ours or (below != path and below.startswith("/")):
            return prefixes[ours].rstrip("/") + below
    return path
