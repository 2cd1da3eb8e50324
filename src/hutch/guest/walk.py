"""Opening a path one name at a time, where the kernel has no openat2 (before Linux 5.6, and some of gVisor).

Every link is read and followed as text, from the box's own root on. What a magic link of /proc jumps to is so never
reached: its text is a name like any other, of a file in the box or of none. A link that somebody puts in place between
the look and the open is not followed at all.
"""

import errno
import os

MAX_LINKS = 40  # as the kernel's own limit, path_resolution(7)
_HERE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def open_by_name(directory: int | None, path: str, flags: int, mode: int) -> int:
    """As openat(2); `directory` None: the working directory."""
    current = _start(directory, path)
    names = _reversed_names(path)
    keeps_last = flags & os.O_NOFOLLOW or (flags & os.O_CREAT and flags & os.O_EXCL)
    links = 0
    try:
        while True:
            name = names.pop()
            target = None if keeps_last and not names else _link(current, name)
            if target is not None:
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                names += _reversed_names(target)
                onward = _start(current, target)
            elif names:
                onward = os.open(name, _HERE, dir_fd=current)
            else:
                return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=current)
            os.close(current)
            current = onward
    finally:
        os.close(current)


def _start(directory: int | None, path: str) -> int:
    if not path:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return os.open("/" if path.startswith("/") else ".", _HERE | os.O_DIRECTORY, dir_fd=directory)


def _reversed_names(path: str) -> list[str]:
    """The next one last. A slash at the end asks for the directory itself."""
    names = [name for name in path.split("/") if name]
    return [*(["."] if path.endswith("/") else []), *reversed(names)]


def _link(directory: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=directory)
    except FileNotFoundError:
        return None  # the open tells, or makes it
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None  # not a link
        raise
