"""E2B: each box is a sandbox, found by its metadata, in which our guest bundle is installed through the official SDK.

Workspace, files, jobs and terminals are the guest's, so they are the same here as on every engine; nothing is uploaded
twice and no command is rewritten. The engine itself creates, ends and pauses boxes, and does clocks and egress.
"""

import asyncio
import os
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from hutch.errors import BoxBroken, EngineError, HutchError, NotFound, Unsupported
from hutch.model.capabilities import Capabilities, Missing, Pause
from hutch.model.ids import BoxId
from hutch.model.limits import EnforcedBy, Grades
from hutch.model.spec import EffectiveSpec, Isolation, NetworkMode, Order
from hutch.providers.base import InstanceRecord, Provider, read_settings
from hutch.providers.command.jail_spec import check
from hutch.providers.command.provider import canary, run_canary
from hutch.providers.e2b.instance import E2BInstance
from hutch.providers.e2b.sdk import is_installed, sdk, translate_errors
from hutch.providers.guest_bundle.pack import GuestBundle, guest_bundle
from hutch.providers.stdio_relay import install
from hutch.providers.stdio_relay.sdk_calls import create_or_undo

KIND = "template"
_BOX, _KEEPER = "hutch-box", "hutch-keeper"
_CREATE_SECONDS = 120
"""The seconds that creating a box may take, whatever its window."""
_NONE = "the size of a sandbox is its template's"
_MISSING = (
    Missing(what="grades.cpus", reason=_NONE, remedy='use a profile with accept_unenforced = ["cpus", "disk_mb"]'),
    Missing(what="grades.disk_mb", reason=_NONE, remedy='use a profile with accept_unenforced = ["cpus", "disk_mb"]'),
    Missing(what="layers", reason="a sandbox's files have no checkpoints here", remedy="use the native provider"),
    Missing(what="users.root", reason="commands run as the template's user", remedy="use sudo, if the template has it"),
    Missing(what="persistent", reason="a sandbox that ends takes its files with it", remedy="pause it, or export it"),
    Missing(what="writable_root", reason="the root is writable by root only", remedy="work in /workspace"),
    Missing(what="read_only_root", reason="its rights protect the root, not its mount", remedy="use another provider"),
    Missing(what="mounts", reason="the sandbox is on another machine", remedy="copy files with `hutch box cp`"),
)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[providers.e2b]` of the configuration. The SDK's own variables replace what is empty."""

    api_key: str = ""
    """The API key, which is better left to E2B_API_KEY, because more people read a file."""
    api_url: str = ""
    """The URL of a server that is not E2B's own."""
    sandbox_url: str = ""
    domain: str = ""
    template: str = "base"
    """The template of boxes whose caller names no image."""
    user: str = "user"
    """The template's ordinary user."""
    window_sec: int = 300
    """The seconds that a sandbox's end is kept ahead while somebody holds it, and that it outlives a crash of ours."""


class E2BProvider(Provider):
    """Boxes as sandboxes of E2B; see docs/guides/providers.md."""

    name: ClassVar[str] = "e2b"
    portable: ClassVar[bool] = True
    settings = Settings

    def __init__(self) -> None:
        self._settings = Settings()

    def configure(self, settings: Mapping[str, object]) -> None:
        self._settings = read_settings(self.name, Settings, settings)

    # --- capabilities ----------------------------------------------------------------------------------------

    async def probe(self) -> Capabilities:
        if not is_installed():
            return self._unusable("the package e2b is not installed", "pip install 'hutch[e2b]'")
        if not (self._settings.api_key or os.environ.get("E2B_API_KEY")):
            return self._unusable("there is no API key", "set E2B_API_KEY, or [providers.e2b] api_key")
        order = canary(self.name, f"{KIND}:{self._settings.template}")
        try:
            await run_canary(self, order)
        except HutchError as error:
            return self._unusable(error.message, error.remedy or "check the server and the template")
        return self._claims()

    def _unusable(self, reason: str, remedy: str) -> Capabilities:
        return Capabilities(provider=self.name, usable=False, reason=reason, remedy=remedy)

    def _claims(self) -> Capabilities:
        return Capabilities(
            provider=self.name,
            isolation=Isolation.VM,
            guest=True,
            ports=True,
            durable_jobs=True,
            pty=True,
            watch=True,
            pause=Pause.SNAPSHOT,
            networks=(NetworkMode.OFF, NetworkMode.ON),
            images=(KIND,),
            default_image=f"{KIND}:{self._settings.template}",
            grades=Grades(
                memory_mb=EnforcedBy.WATCHDOG, pids=EnforcedBy.RLIMIT, open_files=EnforcedBy.RLIMIT
            ),
            missing=_MISSING,
            facts={"server": self._settings.api_url or self._settings.domain or "E2B's own"},
        )  # fmt: skip

    @property
    def _options(self) -> dict[str, Any]:
        names = ("api_key", "api_url", "sandbox_url", "domain")
        return {name: value for name in names if (value := getattr(self._settings, name))}

    # --- creating --------------------------------------------------------------------------------------------

    def plan(self, order: Order) -> InstanceRecord:
        return InstanceRecord(provider=self.name, box_id=order.box_id, keeper=order.keeper)

    async def create(self, order: Order, planned: InstanceRecord) -> E2BInstance:
        check(order, self._claims())
        if order.spec.workspace.source != "own":
            raise Unsupported("the workspace of a sandbox is its own: it is on another machine", op="create")
        return await create_or_undo(self._make(order, planned), lambda: self.destroy(planned))

    async def _make(self, order: Order, planned: InstanceRecord) -> E2BInstance:
        spec, window = order.spec, self._settings.window_sec
        packed = await asyncio.to_thread(guest_bundle)
        async with translate_errors("create"):
            sandbox = await sdk().AsyncSandbox.create(
                template=spec.image.partition(":")[2], timeout=max(window, _CREATE_SECONDS), secure=True,
                metadata={_BOX: order.box_id, _KEEPER: order.keeper},
                allow_internet_access=spec.network is NetworkMode.ON, **self._options,
            )  # fmt: skip
            home = await self._install_guest(sandbox, spec, packed)
            command = install.guest_command(packed)
            started = await sandbox.commands.run(command, background=True, user=self._settings.user,
                                                 timeout=0, retain_output=False)  # fmt: skip
            await started.disconnect()
        ends_at = time.time() + spec.ttl_sec if spec.ttl_sec else 0.0
        record = planned.but(data={"sandbox": sandbox.sandbox_id, "ends_at": ends_at})
        options = install.guest_options(order, home, self._settings.user)
        instance = E2BInstance(record, spec, sandbox, packed, window=window, ends_at=ends_at, options=options)
        try:
            await instance.link()
            async with translate_errors("create"):
                await sandbox.set_timeout(instance.left())
        except HutchError as error:
            await instance.close()
            raise EngineError(f"box {order.box_id} could not be made: {error.message}", op="create") from error
        return instance

    async def _install_guest(self, sandbox: Any, spec: EffectiveSpec, packed: GuestBundle) -> str:
        """Install the guest, unless the template has it, and return the user's home."""
        try:
            await sandbox.commands.run(install.is_installed_script(packed), user="root")
        except sdk().CommandExitException:
            content = await asyncio.to_thread(install.archive, packed)
            await sandbox.files.write(install.ARCHIVE, content, user="root")
            await sandbox.commands.run(install.install_script(packed), user="root")
        await sandbox.commands.run(install.directories_script(spec, self._settings.user), user="root")
        result = await sandbox.commands.run('printf %s "$HOME"', user=self._settings.user)
        return str(result.stdout)

    # --- finding again ---------------------------------------------------------------------------------------

    async def attach(self, record: InstanceRecord, spec: EffectiveSpec) -> E2BInstance:
        sandbox_id = record.data.get("sandbox") or next(iter(await self._sandboxes(record.box_id)), None)
        if not isinstance(sandbox_id, str):
            raise NotFound(f"there is no sandbox of box {record.box_id}", op="attach")
        packed = await asyncio.to_thread(guest_bundle)
        window = self._settings.window_sec
        async with translate_errors("attach"):
            sandbox = await sdk().AsyncSandbox.connect(sandbox_id, timeout=window, **self._options)
        found = record.but(data={**record.data, "sandbox": sandbox_id})
        ends_at = record.data.get("ends_at")
        instance = E2BInstance(
            found, spec, sandbox, packed, window=window, ends_at=ends_at if isinstance(ends_at, float) else 0.0
        )
        try:
            await instance.link()
        except BaseException as error:
            await instance.close()
            if isinstance(error, BoxBroken):
                raise NotFound(f"box {record.box_id} no longer runs", op="attach") from error
            raise
        return instance

    async def _sandboxes(self, box_id: str | None = None) -> dict[str, dict[str, str]]:
        """Return the metadata of our sandboxes by id: of all, or of those of one box."""
        found: dict[str, dict[str, str]] = {}
        query = sdk().SandboxQuery(metadata={_BOX: box_id}) if box_id else None
        async with translate_errors("list"):
            pages = sdk().AsyncSandbox.list(query=query, **self._options)
            while pages.has_next:
                for each in await pages.next_items():
                    if _BOX in (each.metadata or {}):
                        found[each.sandbox_id] = dict(each.metadata)
        return found

    async def list(self) -> tuple[InstanceRecord, ...]:
        return tuple(
            InstanceRecord(
                provider=self.name, box_id=BoxId(about[_BOX]), keeper=about.get(_KEEPER, ""), data={"sandbox": sandbox}
            )
            for sandbox, about in (await self._sandboxes()).items()
        )

    # --- ending ----------------------------------------------------------------------------------------------

    async def stop(self, record: InstanceRecord) -> None:
        raise Unsupported("a sandbox that ends takes its files with it", op="stop", remedy="pause it, or export it")

    async def restore(self, order: Order, record: InstanceRecord) -> E2BInstance:
        raise NotFound(f"box {record.box_id} has no kept files to come back from", op="restore")

    async def destroy(self, record: InstanceRecord) -> None:
        sandbox = record.data.get("sandbox")
        found = [sandbox] if isinstance(sandbox, str) else list(await self._sandboxes(record.box_id))
        for each in found:
            async with translate_errors("destroy"):
                await sdk().AsyncSandbox.kill(each, **self._options)

    async def close(self) -> None:
        """Do nothing, because the SDK's connections belong to the process."""
