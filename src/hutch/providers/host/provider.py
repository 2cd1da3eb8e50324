"""Host: a box is a directory and a process of the host, with all rights of Hutch's own user. Nothing is isolated.

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
from hutch.providers.command.instance import CommandInstance
from hutch.providers.command.jail_spec import BoxParameters
from hutch.providers.command.provider import CommandProvider
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


class HostProvider(CommandProvider):
    """Refused wherever a profile asks for isolation, which all built-in ones do."""

    name: ClassVar[str] = "host"
    exit_grace_sec: ClassVar[float] = 0.0
    drops_user: ClassVar[bool] = False
    watched: ClassVar[bool] = False

    def claims(self) -> Capabilities:
        return Capabilities(
            provider=self.name,
            isolation=Isolation.NONE,
            guest=True,
            ports=True,
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

    def guest(self, parameters: BoxParameters) -> tuple[str, ...]:
        code = "import sys; sys.path.append(sys.argv.pop(1)); from hutch.providers.host.boot import main; main()"
        return (sys.executable, "-I", "-S", "-X", "utf8", "-c", code, str(_SOURCE), parameters.socket_dir)

    def command(self, order: Order, parameters: BoxParameters) -> list[str]:
        """Return the guest's own command line: there is no jail to build."""
        for name in ("workspace", "home", "tmp"):
            Path(parameters.directory, name).mkdir()
        return list(parameters.guest)

    def guest_options(self, order: Order, parameters: BoxParameters) -> dict[str, Any]:
        spec, place = order.spec, f"{parameters.directory}/workspace"
        env = {name: os.environ[name] for name in ("PATH", "USER", "LOGNAME", "LANG", "SHELL") if name in os.environ}
        # A home of its own: what programs leave in one is removed with the box.
        env |= {"HOME": f"{parameters.directory}/home", "TMPDIR": f"{parameters.directory}/tmp"}
        return {
            "box_id": order.box_id,
            "workdir": translated(spec.workdir, place),
            "env": env | spec.env | spec.secrets | {"HUTCH_WORKSPACE": place},
            "orphan_grace": order.orphan_grace_sec,
            "ttl": spec.ttl_sec,
            "open_files": spec.limits.open_files,
        }

    async def create(self, order: Order, planned: InstanceRecord) -> CommandInstance:
        if order.spec.profile:  # a canary has none
            log("host").warning(WARNING, box=order.box_id)
        return await super().create(order, planned)

    def _instance(self, record: InstanceRecord, spec: EffectiveSpec, guest: Identity) -> CommandInstance:
        place = self.shared_files.box(record.box_id)
        return HostInstance(record, spec, guest, f"{place}/door", f"{place}/workspace")
