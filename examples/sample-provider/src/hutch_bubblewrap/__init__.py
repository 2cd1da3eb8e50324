"""Boxes made with bubblewrap (bwrap): a provider for Hutch that lives in a package of its own."""

import shutil
from collections.abc import Mapping
from typing import ClassVar

import msgspec

from hutch.model.capabilities import Capabilities, Missing, Pause
from hutch.model.limits import EnforcedBy, Grades
from hutch.model.spec import Isolation, Order
from hutch.providers.base import read_settings
from hutch.providers.command.jail_spec import BoxParameters, JailEntry, Kind, jail_entries
from hutch.providers.command.provider import CommandProvider

GRADES = Grades(
    memory_mb=EnforcedBy.WATCHDOG,
    pids=EnforcedBy.RLIMIT,
    disk_mb=EnforcedBy.QUOTA,
    open_files=EnforcedBy.RLIMIT,
)
MISSING = (
    Missing(what="grades.cpus", reason="bubblewrap makes no control group", remedy="use the native provider"),
    Missing(what="networks.on", reason="a box has only its own loopback", remedy="use the native provider"),
    Missing(what="layers", reason="the files of a box have no checkpoints", remedy="use the native provider"),
    Missing(what="users.root", reason="a box has one user", remedy="use the native provider"),
    Missing(what="persistent", reason="the files of a box are in memory", remedy="use the native provider"),
    Missing(what="writable_root", reason="the root is the machine's own, read-only", remedy="work in /workspace"),
)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[providers.bubblewrap]` of hutch.toml."""

    program: str = "bwrap"
    """Its name or path."""


class BubblewrapProvider(CommandProvider):
    """One bwrap for each box; the guest is PID 1 in it."""

    name: ClassVar[str] = "bubblewrap"
    settings = Settings
    filtered: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._settings = Settings()

    def configure(self, settings: Mapping[str, object]) -> None:
        self._settings = read_settings(self.name, Settings, settings)

    def prompt(self) -> str:
        return "This box has no network, and its system is read-only. Work in /workspace."

    def claims(self) -> Capabilities:
        program = shutil.which(self._settings.program)
        if program is None:
            return Capabilities(
                provider=self.name,
                usable=False,
                reason=f"there is no program {self._settings.program!r}",
                remedy="apt-get install bubblewrap, or set providers.bubblewrap.program",
            )
        return Capabilities(
            provider=self.name,
            isolation=Isolation.NAMESPACES,
            guest=True,
            ports=True,
            durable_jobs=True,
            pty=True,
            watch=True,
            pause=Pause.SIGNALS,
            images=("host", "dir"),
            mounts=True,
            grades=GRADES,
            missing=MISSING,
            facts={"program": program},
        )

    def command(self, order: Order, parameters: BoxParameters) -> list[str]:
        argv = [
            shutil.which(self._settings.program) or "bwrap",
            "--unshare-all", "--unshare-user", "--disable-userns", "--as-pid-1",
            "--uid", "1000", "--gid", "1000", "--hostname", order.box_id[:12], "--clearenv", "--cap-drop", "ALL",
            "--seccomp", str(parameters.filter_fd), "--proc", "/proc", "--dev", "/dev",
        ]  # fmt: skip
        for each in jail_entries(order, parameters):
            argv += arguments(each)
        return [*argv, "--remount-ro", "/", "--chdir", "/", "--", *parameters.guest]


def arguments(entry: JailEntry) -> list[str]:
    """One thing that a box shows, in the words of bwrap(1)."""
    match entry.kind:
        case Kind.LINK:
            return ["--symlink", entry.source, entry.target]
        case Kind.READ:
            return ["--ro-bind", entry.source, entry.target]
        case Kind.WRITE:
            return ["--bind", entry.source, entry.target]
    made = ["--perms", f"{entry.mode:04o}", "--size", str(entry.kilobytes * 1024), "--tmpfs", entry.target]
    return [*made, "--remount-ro", entry.target] if entry.read_only else made
