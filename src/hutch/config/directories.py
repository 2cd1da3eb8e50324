"""Where Hutch keeps its files: by XDG for a person, under /var/lib and /run for root."""

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from hutch.errors import ConfigError

_SOCKET_PATH = 107
"""Bytes of sun_path in sockaddr_un (108) without the NUL, see unix(7)."""
_LONGEST_SOCKET = "/" + 20 * "x" + "/deputy"


def is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def state_dir(environ: Mapping[str, str]) -> Path:
    """What outlives a restart of the machine: records, persistent boxes, volumes."""
    if is_root():
        return Path("/var/lib/hutch")
    return _xdg(environ, "XDG_STATE_HOME", ".local/state") / "hutch"


def run_dir(environ: Mapping[str, str]) -> Path:
    """Sockets and other things of the running boxes. Without XDG_RUNTIME_DIR a directory of this user in /tmp."""
    if is_root():
        return Path("/run/hutch")
    given = environ.get("XDG_RUNTIME_DIR", "")
    if given.startswith("/"):
        return Path(given) / "hutch"
    return Path(f"/tmp/hutch-{os.getuid() if hasattr(os, 'getuid') else 'user'}")


def config_files(environ: Mapping[str, str], cwd: Path) -> tuple[Path, ...]:
    """Where a configuration is looked for when none is named; the first one there is used."""
    return (
        cwd / "hutch.toml",
        _xdg(environ, "XDG_CONFIG_HOME", ".config") / "hutch" / "hutch.toml",
        Path("/etc/hutch/hutch.toml"),
    )


def check_run_dir(path: Path, origin: str) -> None:
    """Raises ConfigError if a box's socket in it would have a longer path than the kernel takes."""
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
    """Make a directory of ours, or check that the one there is ours and that nobody else can write to it.

    /tmp/hutch-1000 may have been made by somebody who waits for us to put sockets into it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=mode)
            path.chmod(mode)  # the umask took its part
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


def _xdg(environ: Mapping[str, str], variable: str, fallback: str) -> Path:
    """A relative path in such a variable is to be ignored, says the XDG specification."""
    given = environ.get(variable, "")
    if given.startswith("/"):
        return Path(given)
    home = environ.get("HOME", "")
    return (Path(home) if home.startswith("/") else Path.home()) / fallback
