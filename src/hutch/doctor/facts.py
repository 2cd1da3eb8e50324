"""Facts about this machine, gathered once; the checks see nothing else, so they can be tried on any machine."""

import os
import platform
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hutch.config import Config
    from hutch.linux.cgroup_detect import CgroupSupport
    from hutch.providers.native.network.availability import Availability

SYSCTLS = (
    "user.max_user_namespaces",
    "kernel.unprivileged_userns_clone",
    "kernel.apparmor_restrict_unprivileged_userns",
)
ENGINES = ("docker", "podman", "nsjail", "bwrap", "runsc")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A directory Hutch writes to, and the obstacle to that, which is "" if there is none."""

    path: str
    obstacle: str = ""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts that were found. The defaults are those of a machine where everything is as it should be."""

    platform: str = "linux"
    machine: str = "x86_64"
    kernel: str = "6.8.0"
    distribution: str = "unknown"
    python: tuple[int, int, int] = (3, 12, 0)
    euid: int = 0
    ranges: bool = True
    """Whether each box can have ids of its own."""
    closed_to_others: str = ""
    """The first directory on the way to our installation that other users cannot enter."""
    installed: str = "/opt/hutch"
    sysctls: Mapping[str, str | None] = field(default_factory=dict)
    """The kernel's settings by name, with None for one that this kernel does not have."""
    trials: Mapping[str, str] = field(default_factory=dict)
    cgroups: "CgroupSupport | None" = None
    seccomp: bool = True
    landlock: int = 6
    network: "Availability | None" = None
    state: Place = Place(path="/var/lib/hutch")
    run: Place = Place(path="/run/hutch")
    container: str = ""
    """The kind of container we are in, or "" if none is known."""
    engines: Mapping[str, str] = field(default_factory=dict)
    previews: str = ""
    """The configured address of previews (`server.previews`), or "" for names below localhost."""
    previews_resolve: bool = True
    """Whether a name below the configured domain has an address, as a wildcard entry gives it."""
    address: str = ""
    """Host and port of `hutch serve`, or "" if it does not listen on TCP."""
    kernels: str = ""
    """The environment of prepared interpreters, or "" if none is prepared."""
    shared_roots: tuple[Place, ...] = ()
    """Directories that are configured to be shared with LangBot."""


def gather(config: "Config") -> Facts:
    """Gather the facts of this machine. On other systems than Linux only the first few are known."""
    version = sys.version_info
    python = (version.major, version.minor, version.micro)
    if sys.platform != "linux":
        return Facts(platform=sys.platform, machine=platform.machine(), kernel=platform.release(), python=python)
    from hutch.doctor import trials
    from hutch.linux import cgroup_detect, identity, landlock
    from hutch.providers.native.network import availability

    installed = Path(__file__).resolve().parents[1]
    return Facts(
        platform=sys.platform,
        machine=platform.machine(),
        kernel=platform.release(),
        distribution=_distribution(),
        python=python,
        euid=os.geteuid(),
        ranges=identity.can_map_ranges(),
        closed_to_others=closed_to_others(installed) or closed_to_others(Path(sys.executable)),
        installed=str(installed),
        sysctls={name: _sysctl(name) for name in SYSCTLS},
        trials=trials.run(),
        cgroups=cgroup_detect.detect(),
        seccomp="errno" in _read("/proc/sys/kernel/seccomp/actions_avail"),
        landlock=landlock.abi(),
        network=availability.available(),
        state=place(Path(config.state_dir)),
        run=place(Path(config.run_dir)),
        container=_container(),
        engines={name: path for name in ENGINES if (path := shutil.which(name))},
        previews=config.server.previews,
        previews_resolve=not config.server.previews or _has_wildcard(config.server.previews),
        address=f"{config.server.host}:{config.server.port}" if config.server.host else "",
        kernels=_prepared(Path(config.state_dir)),
        shared_roots=tuple(shared_root(root) for root in config.server.langbot_shared_roots),
    )


def _prepared(state_dir: Path) -> str:
    """The environment of prepared interpreters."""
    from hutch.kernels import environment

    found = environment.load(state_dir)
    return found.prefix if found is not None and Path(found.python).exists() else ""


def _has_wildcard(previews: str) -> bool:
    """Ask the machine's resolver for a name below the domain that no administrator can have added by hand."""
    import socket
    from urllib.parse import urlsplit

    try:
        socket.getaddrinfo(f"1-{'a' * 20}.{urlsplit(previews).hostname}", None)
    except (OSError, ValueError):
        return False
    return True


# The next box needs this for its record, its directories and the store's log, with room to end it again.
_LEAST_BYTES, _LEAST_FILES = 4 << 20, 64


def place(directory: Path) -> Place:
    """Return whether we can write there. A directory that does not exist yet is judged by its nearest parent."""
    for existing in (directory, *directory.parents):
        if not existing.exists():
            continue
        if not existing.is_dir():
            return Place(path=str(directory), obstacle=f"{existing} is not a directory")
        if not os.access(existing, os.W_OK | os.X_OK):
            return Place(path=str(directory), obstacle=f"{existing} cannot be written to")
        space = os.statvfs(existing)
        # Some file systems count neither, and then both are 0.
        if space.f_blocks and space.f_bavail * space.f_frsize < _LEAST_BYTES:
            return Place(path=str(directory), obstacle="no space is left on its file system")
        if space.f_files and space.f_favail < _LEAST_FILES:
            return Place(path=str(directory), obstacle="its file system can hold no more files")
        return Place(path=str(directory))
    return Place(path=str(directory), obstacle="no part of this path exists")


def shared_root(path: str) -> Place:
    """Find the obstacle to showing what lies below a directory that LangBot writes to."""
    if not os.path.isdir(path):
        return Place(path=path, obstacle="there is no such directory")
    readable = os.access(path, os.R_OK | os.X_OK)
    return Place(path=path, obstacle="" if readable else "this user may not read it")


def closed_to_others(path: Path) -> str:
    """Return the first directory on the way to `path` that users other than its owner and group cannot enter."""
    for directory in reversed(path.parents):
        if not directory.stat().st_mode & stat.S_IXOTH:
            return str(directory)
    return ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _sysctl(name: str) -> str | None:
    return _read(f"/proc/sys/{name.replace('.', '/', 1)}") or None


def _distribution() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return "unknown"
    return release.get("PRETTY_NAME") or release.get("ID", "unknown")


def _container() -> str:
    return next(_containers(), "")


def _containers() -> Iterator[str]:
    if Path("/.dockerenv").exists():
        yield "docker"
    if Path("/run/.containerenv").exists():
        yield "podman"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        yield "kubernetes"
    if manager := _read("/run/systemd/container"):
        yield manager
