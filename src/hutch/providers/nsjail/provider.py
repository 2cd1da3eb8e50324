"""nsjail: a box is one jail, made by the program of that name, in which our guest serves every command."""

import os
import shutil
from collections.abc import Mapping
from typing import ClassVar

import msgspec

from hutch.model.capabilities import Capabilities, Missing, Pause
from hutch.model.limits import EnforcedBy, Grades
from hutch.model.spec import Isolation, Order
from hutch.providers.base import InstanceRecord, read_settings
from hutch.providers.command.instance import WatchdogCounters
from hutch.providers.command.jail_spec import BoxParameters
from hutch.providers.command.provider import CommandProvider
from hutch.providers.guest_bundle.counters import BoxCounters, HostCounters
from hutch.providers.nsjail import argv
from hutch.providers.nsjail import cgroups as groups

_MISSING = (
    Missing(what="networks.on", reason="a jail has only its own loopback", remedy="use the native provider or Docker"),
    Missing(what="layers", reason="a jail's files have no checkpoints", remedy="use the native provider"),
    Missing(what="users.root", reason="a jail has one user", remedy="use the native provider or Docker"),
    Missing(what="persistent", reason="the files of a jail are in memory", remedy="use the native provider or Docker"),
    Missing(what="writable_root", reason="a jail's root is read-only", remedy="work in /workspace"),
)
_NO_GROUPS = (
    Missing(what="grades.cpus", reason="no control group can be made here", remedy="run Hutch as root"),
)  # fmt: skip


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[providers.nsjail]` of the configuration."""

    program: str = "nsjail"
    """Its name or path."""
    policy: str = ""
    """A Kafel policy in place of ours, for a machine whose Kafel does not know a system call that ours names."""


class NsjailProvider(CommandProvider):
    """See docs/guides/providers.md."""

    name: ClassVar[str] = "nsjail"
    settings = Settings
    drops_user: ClassVar[bool] = False  # it needs our rights to make control groups, and gives up all others itself

    def __init__(self) -> None:
        super().__init__()
        self._settings = Settings()
        self._groups: argv.Groups | None = None

    def configure(self, settings: Mapping[str, object]) -> None:
        self._settings = read_settings(self.name, Settings, settings)

    @property
    def groups(self) -> argv.Groups:
        if self._groups is None:
            self._groups = groups.find()
        return self._groups

    @property
    def watched(self) -> bool:  # type: ignore[override]
        return not self.groups.version

    def claims(self) -> Capabilities:
        program = shutil.which(self._settings.program)
        if program is None:
            return Capabilities(
                provider=self.name,
                usable=False,
                reason=f"nsjail is not installed: there is no program {self._settings.program!r} on the PATH",
                remedy="build it from github.com/google/nsjail (make; it needs protobuf, libnl-route-3, bison, flex), "
                'or name it: [providers.nsjail] program = "/path/to/nsjail"',
            )
        held = EnforcedBy.CGROUP if self.groups.version else EnforcedBy.NONE
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
            grades=Grades(
                cpus=held,
                memory_mb=EnforcedBy.CGROUP if self.groups.version else EnforcedBy.WATCHDOG,
                pids=EnforcedBy.CGROUP if self.groups.version else EnforcedBy.RLIMIT,
                disk_mb=EnforcedBy.QUOTA,
                open_files=EnforcedBy.RLIMIT,
            ),
            missing=_MISSING if self.groups.version else (*_MISSING, *_NO_GROUPS),
            facts={
                "program": program,
                "cgroups": f"v{self.groups.version}" if self.groups.version else "none",
                "disk": "tmpfs: half of disk_mb for /workspace, a quarter each for the home and /tmp",
            },
        )

    def command(self, order: Order, parameters: BoxParameters) -> list[str]:
        program = shutil.which(self._settings.program) or self._settings.program
        policy = self._settings.policy or argv.policy(os.uname().machine)
        return argv.command(program, order, parameters, self.groups, policy)

    def counters(self, guest: int) -> BoxCounters:
        return HostCounters(guest) if self.groups.version else WatchdogCounters()

    async def destroy(self, record: InstanceRecord) -> None:
        guest = self._read_identity(record.box_id, "guest")
        await super().destroy(record)
        if guest is not None:
            groups.remove(guest.pid, self.groups)
