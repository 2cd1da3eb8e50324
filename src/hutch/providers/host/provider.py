"""Host: a box is a directory and a process of the machine, with all rights of whoever runs Hutch. There is no wall.

It exists for machines that are a sandbox themselves (a CI job, a throwaway VM). It is never chosen by itself, every
box is logged as a warning, and every built-in profile refuses it.
"""

import os
import sys
from pathlib import Path
from typing import Any, ClassVar

from hutch.linux.processes import Identity
from hutch.logs import log
from hutch.model.capabilities import Capabilities, Missing, Pause
from hutch.model.limits import EnforcedBy, Grades
from hutch.model.spec import EffectiveSpec, Isolation, NetworkMode, Order
from hutch.providers.base import InstanceRecord
from hutch.providers.command.instance import LaunchedInstance
from hutch.providers.command.jail_spec import Site
from hutch.providers.command.provider import LaunchedProvider
from hutch.providers.host.instance import WARNING, HostInstance, translated

_SOURCE = Path(__file__).parents[3]
_NOTHING = "nothing stands between a command and the machine"
_MISSING = tuple(
    Missing(what=what, reason=f"{_NOTHING}: {reason}", remedy="use any other provider")
    for what, reason in (
        ("isolation", "no namespace, no filter of system calls; network `off` is not enforced"),
        ("grades.cpus", "no control group"),
        ("grades.memory_mb", "no control group"),
        ("grades.pids", "no control group"),
        ("grades.disk_mb", "no file system of its own"),
        ("users.root", "commands run as the user who runs Hutch"),
        ("writable_root", "the root is the machine's own"),
        ("mounts", "all files of the machine are there anyway"),
        ("persistent", "the directory of a box goes with it"),
    )
)


class HostProvider(LaunchedProvider):
    """Refused wherever a profile asks for isolation, which all built-in ones do."""

    name: ClassVar[str] = "host"
    farewell: ClassVar[float] = 0.0
    drops_user: ClassVar[bool] = False
    watched: ClassVar[bool] = False

    def claims(self) -> Capabilities:
        return Capabilities(
            provider=self.name,
            isolation=Isolation.NONE,
            guest=True,
            durable_jobs=True,
            pty=True,
            watch=True,
            pause=Pause.SIGNALS,
            # Both: what is asked for cannot be kept from commands, and a profile that accepts no isolation knows it.
            networks=(NetworkMode.OFF, NetworkMode.ON),
            images=("host",),
            grades=Grades(open_files=EnforcedBy.RLIMIT),
            missing=_MISSING,
            facts={"warning": WARNING},
        )

    def prompt(self) -> str:
        return WARNING

    @property
    def _has_ids(self) -> bool:
        return False

    def guest(self, site: Site) -> tuple[str, ...]:
        code = "import sys; sys.path.append(sys.argv.pop(1)); from hutch.providers.host.boot import main; main()"
        return (sys.executable, "-I", "-S", "-X", "utf8", "-c", code, str(_SOURCE), site.door)

    def command(self, order: Order, site: Site) -> list[str]:
        """Nothing is built: the guest itself is the program."""
        for name in ("workspace", "home", "tmp"):
            Path(site.directory, name).mkdir()
        return list(site.guest)

    def told(self, order: Order, site: Site) -> dict[str, Any]:
        spec, place = order.spec, f"{site.directory}/workspace"
        env = {name: os.environ[name] for name in ("PATH", "USER", "LOGNAME", "LANG", "SHELL") if name in os.environ}
        # A home of its own: what programs leave in one goes with the box.
        env |= {"HOME": f"{site.directory}/home", "TMPDIR": f"{site.directory}/tmp"}
        return {
            "box_id": order.box_id,
            "workdir": translated(spec.workdir, place),
            "env": env | spec.env | spec.secrets | {"HUTCH_WORKSPACE": place},
            "orphan_grace": order.orphan_grace_sec,
            "ttl": spec.ttl_sec,
            "open_files": spec.limits.open_files,
        }

    async def create(self, order: Order, planned: InstanceRecord) -> LaunchedInstance:
        if order.spec.profile:  # a canary has none
            log("host").warning(WARNING, box=order.box_id)
        return await super().create(order, planned)

    def _instance(self, record: InstanceRecord, spec: EffectiveSpec, guest: Identity) -> LaunchedInstance:
        place = self.ground.box(record.box_id)
        return HostInstance(record, spec, guest, f"{place}/door", f"{place}/workspace")
