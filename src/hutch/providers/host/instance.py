"""`HostInstance`: /workspace means the box's own directory, and the first result says that nothing is isolated."""

from typing import Any

from hutch.linux.processes import Identity
from hutch.model.results import Result
from hutch.model.spec import EffectiveSpec
from hutch.providers.base import Command, InstanceRecord
from hutch.providers.command.instance import CommandInstance
from hutch.providers.guest_bundle.counters import GuestCounters
from hutch.providers.guest_client.channel import Channel
from hutch.providers.guest_client.files import GuestFiles
from hutch.providers.guest_client.process import GuestProcess
from hutch.providers.guest_client.trees import HOST_BYTES
from hutch.providers.guest_client.verdicts import Counters

WARNING = "NO ISOLATION: commands run on this machine itself, with all rights of the user who runs Hutch"
_PATHS = ("path", "source", "target", "cwd")


def translated(path: str, workspace: str) -> str:
    """Return the host path of a path in the box: /workspace stands for the box's own directory."""
    if path == "/workspace" or path.startswith("/workspace/"):
        return workspace + path.removeprefix("/workspace")
    return path


class NoCounters(GuestCounters):
    """Counters of a box without a control group: there are none."""

    async def refresh(self, link: object) -> None:
        """Do nothing: there is nothing to ask for."""

    def read(self) -> Counters:
        return Counters()


class HostFiles(GuestFiles):
    """Files of a host box. Paths below /workspace are looked up in the box's directory."""

    workspace = ""

    async def _ask(self, op: str, *shape: Any, **fields: Any) -> Any:
        return await super()._ask(op, *shape, **self._named(fields))

    async def _open(self, op: str, **fields: Any) -> Channel:
        return await super()._open(op, **self._named(fields))

    def _named(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {
            name: translated(value, self.workspace) if name in _PATHS and isinstance(value, str) else value
            for name, value in fields.items()
        }


class HostInstance(CommandInstance):
    """A box that is only a directory of the host."""

    def __init__(
        self, record: InstanceRecord, spec: EffectiveSpec, guest: Identity, socket_dir: str, workspace: str
    ) -> None:
        super().__init__(record, spec, guest, socket_dir, NoCounters(), watched=False)
        self._workspace = workspace
        self._files = HostFiles(self.link, lambda _: HOST_BYTES)  # no disk of its own bounds it
        self._files.workspace = workspace
        self._warned = False

    async def run(self, command: Command) -> Result:
        result = await super().run(self._placed(command))
        if self._warned:
            return result
        self._warned = True
        return result.but(notes=(WARNING, *result.notes))

    async def start(self, command: Command) -> GuestProcess:
        return await super().start(self._placed(command))

    def _placed(self, command: Command) -> Command:
        return command.but(cwd=translated(command.cwd, self._workspace)) if command.cwd else command
