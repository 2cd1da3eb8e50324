"""The directories of Hutch's files: by XDG for a person, under /var/lib and /run for root."""

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from hutch.errors import ConfigError
from hutch.logs import log

CONFIG_FILE = "hutch.toml"
_SOCKET_PATH = 107
"""Bytes of sun_path in sockaddr_un (108) without the NUL, see unix(7)."""
_LONGEST_SOCKET = "/" + 20 * "x" + "/deputy"
_OURS = frozenset({"keepers", "hutch.db", "receipts.db", "server.lock"})
"""Every state or run directory that a keeper has used has one of these entries."""
_ALSO_OURS = frozenset({"boxes", "cache", "ids", "images", "instance", "mcp", "skills", "volumes"})
"""Entries that a directory may have before its first keeper: probing an engine makes its part, and the id ranges of
boxes are in root's run directory, whichever other one a keeper uses."""
_SHARED = frozenset(
    {"/", "/etc", "/home", "/opt", "/root", "/run", "/srv", "/tmp", "/usr", "/var", "/var/lib", "/var/run"}
)
"""Hutch never changes the mode of these, whatever they contain."""


def is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def state_dir(environ: Mapping[str, str]) -> Path:
    """Return the default directory of what outlives a restart of the machine: records, persistent boxes, volumes."""
    if is_root():
        return Path("/var/lib/hutch")
    return _xdg(environ, "XDG_STATE_HOME", ".local/state") / "hutch"


def run_dir(environ: Mapping[str, str]) -> Path:
    """Return the default directory of sockets of running boxes; without XDG_RUNTIME_DIR it is in /tmp."""
    if is_root():
        return Path("/run/hutch")
    given = environ.get("XDG_RUNTIME_DIR", "")
    if given.startswith("/"):
        return Path(given) / "hutch"
    return Path(f"/tmp/hutch-{os.getuid() if hasattr(os, 'getuid') else 'user'}")


def config_dir(environ: Mapping[str, str]) -> Path:
    """Return the directory of the user's own configuration, which is never shown in a box."""
    return _xdg(environ, "XDG_CONFIG_HOME", ".config") / "hutch"


def config_files(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """List where a configuration is searched if none is named and none in the working directory is trusted.

    The first that exists is used.
    """
    return (config_dir(environ) / CONFIG_FILE, Path("/etc/hutch") / CONFIG_FILE)


def check_author(path: Path, found: os.stat_result) -> None:
    """Raise ConfigError if another user may have written an open file that configures us.

    On a read-only mount nobody can write it, so its owner does not matter: containers get their configuration so.
    """
    if not hasattr(os, "geteuid") or os.statvfs(path).f_flag & os.ST_RDONLY:
        return
    owned = found.st_uid in (0, os.geteuid())
    grouped = found.st_mode & stat.S_IWGRP and found.st_gid not in (0, os.getegid())
    if owned and not grouped and not found.st_mode & stat.S_IWOTH:
        return
    raise ConfigError(
        f"{path} belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}: others may have written it",
        remedy=f"look at it, then: chown {os.geteuid()} {path} && chmod go-w {path}",
    )


def check_run_dir(path: Path, origin: str) -> None:
    """Raise ConfigError if a box's socket in it would have a longer path than the kernel accepts."""
    room = _SOCKET_PATH - len(_LONGEST_SOCKET)
    length = len(os.fsencode(path))
    if length <= room:
        return
    raise ConfigError(
        f"run_dir {path} ({origin}) has {length} bytes, and the sockets in it leave room for {room}",
        remedy="set run_dir or HUTCH_RUN_DIR to a shorter path, such as /tmp/hutch",
        details={"field": "run_dir"},
    )


def make(path: Path, mode: int = 0o700) -> None:
    """Make a directory of ours, or check that the one there is ours alone.

    Another user may have made /tmp/hutch-1000 to catch our sockets, so a directory that others own or can write to is
    refused. One that others can only read is closed to them, because it holds commands, digests of keys and the files
    of boxes; the directories above it stay as they are.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=mode)
            path.chmod(mode)  # the umask removed some bits
        found = path.lstat()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be made: {error.strerror}", remedy="choose another with HUTCH_STATE_DIR, HUTCH_RUN_DIR"
        ) from error
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{path} is not a directory", remedy="remove it, or configure another")
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ConfigError(
            f"{path} belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}: others could put files "
            f"into it",
            remedy=f"remove it or chown it to {os.geteuid()} with mode {mode:o}, or configure another",
        )
    if found.st_mode & 0o077 & ~mode:
        _close(path, found, mode)


def _close(path: Path, found: os.stat_result, mode: int) -> None:
    """Close a directory that only Hutch uses to others; raise ConfigError if it has another use too."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        entries = set(os.listdir(descriptor)) - {"lost+found"}
        if str(path) in _SHARED or path == Path.home() or not (entries & _OURS or entries <= _ALSO_OURS):
            raise ConfigError(
                f"others can look into {path} (mode {stat.S_IMODE(found.st_mode):o}), and Hutch is not its only user",
                remedy=f"configure a directory of Hutch's own, or `chmod {mode:o} {path}`",
            )
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)
    log("config").warning("others could look into a directory; they no longer can", path=path, was=f"{found.st_mode:o}")


def _xdg(environ: Mapping[str, str], variable: str, fallback: str) -> Path:
    """Read an XDG variable; the specification says that a relative path in it is ignored."""
    given = environ.get(variable, "")
    if given.startswith("/"):
        return Path(given)
    home = environ.get("HOME", "")
    return (Path(home) if home.startswith("/") else Path.home()) / fallback
