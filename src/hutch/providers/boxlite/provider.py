"""BoxLite: each box is a micro virtual machine with a kernel of its own, and our guest bundle is installed in it.

Local machines need a KVM that really runs guests, which the probe finds out; a REST server needs none here. Boxes are
found again by their names.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from hutch.errors import EngineError, HutchError, NotFound, Unsupported
from hutch.model.capabilities import Capabilities, Missing
from hutch.model.ids import BoxId, is_box_id, new_box_id
from hutch.model.limits import EnforcedBy, Grades
from hutch.model.spec import EffectiveSpec, Isolation, NetworkMode, Order
from hutch.providers.base import InstanceRecord, Provider, read_settings
from hutch.providers.boxlite import canary, kvm
from hutch.providers.boxlite.instance import BoxLiteInstance
from hutch.providers.boxlite.sdk import is_installed, sdk, translate_errors
from hutch.providers.command import mounts
from hutch.providers.command.jail_spec import check
from hutch.providers.guest_bundle.pack import GuestBundle, guest_bundle
from hutch.providers.stdio_relay import install
from hutch.providers.stdio_relay.sdk_calls import create_or_undo

_PREFIX = "hutch"
_CANARY = 25.0
_USER = "1000:1000"
_HOME = "/home/user"
_MISSING = (
    Missing(what="layers", reason="a machine's disk has no checkpoints here", remedy="use the native provider"),
    Missing(what="users.root", reason="commands run as the box's ordinary user", remedy="use the native provider"),
    Missing(what="persistent", reason="boxes are removed with their disks", remedy="export the box"),
    Missing(what="writable_root", reason="the root is writable by root only", remedy="work in /workspace"),
    Missing(what="mounts", reason="the box has a file system of its own", remedy="copy files with `hutch box cp`"),
    Missing(what="pause", reason="a machine that is stopped loses its processes", remedy="use the native provider"),
)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[providers.boxlite]` of the configuration."""

    url: str = ""
    """The URL of a BoxLite REST server. If empty, machines run here."""
    key: str = ""
    """The API key of that server, which is better left to BOXLITE_API_KEY."""
    home: str = ""
    """The directory of images and disks. If empty, it is below Hutch's state directory."""
    image: str = ""
    """The image of boxes whose caller names none, such as "debian:12"."""


class BoxLiteProvider(Provider):
    """Boxes as virtual machines of BoxLite; see docs/guides/providers.md."""

    name: ClassVar[str] = "boxlite"
    settings = Settings

    def __init__(self) -> None:
        self._settings = Settings()
        self._state = ""
        self._runtime: Any = None
        self._doubted = False

    def set_directories(self, state_dir: str, run_dir: str) -> None:
        self._state = state_dir

    def configure(self, settings: Mapping[str, object]) -> None:
        self._settings = read_settings(self.name, Settings, settings)

    # --- capabilities ----------------------------------------------------------------------------------------

    async def probe(self) -> Capabilities:
        if not is_installed():
            return self._unusable("the package boxlite is not installed", "pip install 'hutch[boxlite]'")
        if not self._settings.url and (obstacle := await asyncio.to_thread(kvm.obstacle)):
            return self._unusable(obstacle, "enable (nested) virtualisation, or name a server: [providers.boxlite] url")
        proof = canary.Proof(self._settings.url)
        doubted, self._doubted = self._doubted, False
        reason = None if doubted else proof.read()
        if reason is None:
            reason = await self._run_canary()
            proof.write(reason)
        if reason:
            return self._unusable(reason, f"hutch conformance {self.name}, once its machines boot")
        return self._claims()

    def forget_probe(self) -> None:
        self._doubted = True

    async def _run_canary(self) -> str:
        """Return why a machine made of nothing but our guest bundle does not boot, or "" if it does."""
        name = f"{_PREFIX}-canary-{new_box_id()}"
        try:
            with tempfile.TemporaryDirectory() as place:
                await asyncio.to_thread(canary.write_layout, Path(place), await asyncio.to_thread(guest_bundle))
                async with asyncio.timeout(_CANARY), translate_errors("probe"):
                    options = sdk().BoxOptions(rootfs_path=place, cpus=1, memory_mib=256, detach=False)
                    box = await self._boxes.create(options, name=name)
                    await box.start()
                    program, *arguments = guest_bundle().python("")
                    code = (await (await box.exec(program, arguments)).wait()).exit_code
                return f"a program in a machine ended with {code}" if code else ""
        except TimeoutError:
            return f"a machine did not boot within {_CANARY:g} s, though KVM runs single instructions"
        except HutchError as error:
            return f"a machine does not boot: {error.message}"
        finally:
            with contextlib.suppress(HutchError):  # only the reason above matters
                async with translate_errors("destroy"):
                    await self._boxes.remove(name, force=True)

    def _unusable(self, reason: str, remedy: str) -> Capabilities:
        return Capabilities(provider=self.name, usable=False, reason=reason, remedy=remedy)

    def _claims(self) -> Capabilities:
        image = self._settings.image.removeprefix("oci:")
        return Capabilities(
            provider=self.name,
            isolation=Isolation.VM,
            guest=True,
            ports=True,
            durable_jobs=True,
            pty=True,
            watch=True,
            networks=(NetworkMode.OFF, NetworkMode.ON),
            images=("oci", "dir"),
            default_image=f"oci:{image}" if image else "",
            grades=Grades(
                cpus=EnforcedBy.QUOTA, memory_mb=EnforcedBy.WATCHDOG, pids=EnforcedBy.RLIMIT,
                disk_mb=EnforcedBy.QUOTA, open_files=EnforcedBy.RLIMIT,
            ),
            missing=_MISSING,
            facts={"where": self._settings.url or "this machine", "dir images": "OCI layouts"},
        )  # fmt: skip

    # --- creating --------------------------------------------------------------------------------------------

    def plan(self, order: Order) -> InstanceRecord:
        return InstanceRecord(
            provider=self.name,
            box_id=order.box_id,
            keeper=order.keeper,
            data={"name": _name(order.box_id, order.keeper)},
        )

    async def create(self, order: Order, planned: InstanceRecord) -> BoxLiteInstance:
        check(order, self._claims())
        mounts.check_sources(order)
        rootfs = order.places.image.real if order.places.image is not None else ""
        if rootfs and not Path(rootfs, "oci-layout").is_file():
            raise NotFound(f"{rootfs} is no OCI layout: it has no file oci-layout", op="create")
        return await create_or_undo(self._make(order, planned, rootfs=rootfs), lambda: self.destroy(planned))

    async def _make(self, order: Order, planned: InstanceRecord, *, rootfs: str) -> BoxLiteInstance:
        packed = await asyncio.to_thread(guest_bundle)
        spec, boxlite = order.spec, sdk()
        mode = "enabled" if spec.network is NetworkMode.ON else "disabled"
        source = {"rootfs_path": rootfs} if rootfs else {"image": spec.image.removeprefix("oci:")}
        async with translate_errors("create"):
            options = boxlite.BoxOptions(
                **source, cpus=max(1, round(spec.limits.cpus)), memory_mib=spec.limits.memory_mb + 128,
                disk_size_gb=max(1, spec.limits.disk_mb // 1024), network=boxlite.NetworkSpec(mode=mode),
                detach=True, auto_remove=False,
            )  # fmt: skip
            box = await self._boxes.create(options, name=str(planned.data["name"]))
            await box.start()
            await self._install_guest(box, spec, packed)
            await box.exec("/bin/sh", ["-c", install.guest_command(packed)], user=_USER)
        instance = BoxLiteInstance(planned, spec, box, packed, options=install.guest_options(order, _HOME, "user"))
        try:
            await instance.link()
        except HutchError as error:
            await instance.close()
            raise EngineError(f"box {order.box_id} could not be made: {error.message}", op="create") from error
        return instance

    async def _install_guest(self, box: Any, spec: EffectiveSpec, packed: GuestBundle) -> None:
        if await _run(box, install.is_installed_script(packed)):
            with tempfile.TemporaryDirectory() as place:
                path = Path(place, Path(install.ARCHIVE).name)
                path.write_bytes(await asyncio.to_thread(install.archive, packed))
                await box.copy_in(str(path), install.ARCHIVE)
            await _demand(box, install.install_script(packed))
        await _demand(box, install.directories_script(spec, _USER))

    @property
    def _boxes(self) -> Any:
        """Return the package's runtime, of which there is one for each home."""
        if self._runtime is None:
            boxlite = sdk()
            if self._settings.url:
                credential = boxlite.ApiKeyCredential(self._settings.key) if self._settings.key else None
                self._runtime = boxlite.Boxlite.rest(boxlite.BoxliteRestOptions(self._settings.url, credential))
            else:
                home = self._settings.home or f"{self._state}/boxlite"
                Path(home).mkdir(mode=0o700, parents=True, exist_ok=True)
                self._runtime = boxlite.Boxlite(boxlite.Options(home_dir=home))
        return self._runtime

    # --- finding again ---------------------------------------------------------------------------------------

    async def attach(self, record: InstanceRecord, spec: EffectiveSpec) -> BoxLiteInstance:
        async with translate_errors("attach"):
            box = await self._boxes.get(_name(record.box_id, record.keeper))
        if box is None:
            raise NotFound(f"there is no machine of box {record.box_id}", op="attach")
        instance = BoxLiteInstance(record, spec, box, await asyncio.to_thread(guest_bundle))
        try:
            if not await instance.is_alive():
                raise NotFound(f"box {record.box_id} no longer runs", op="attach")
            await instance.link()
        except BaseException:
            await instance.close()
            raise
        return instance

    async def list(self) -> tuple[InstanceRecord, ...]:
        async with translate_errors("list"):
            infos = await self._boxes.list_info()
        found = []
        for info in infos:
            prefix, _, rest = (info.name or "").partition("-")
            box_id, _, keeper = rest.partition("-")
            if prefix == _PREFIX and is_box_id(box_id):
                found.append(InstanceRecord(
                    provider=self.name, box_id=BoxId(box_id), keeper=keeper, data={"name": info.name}
                ))  # fmt: skip
        return tuple(found)

    # --- ending ----------------------------------------------------------------------------------------------

    async def stop(self, record: InstanceRecord) -> None:
        raise Unsupported("boxes are removed with their disks", op="stop", remedy="export the box, or destroy it")

    async def restore(self, order: Order, record: InstanceRecord) -> BoxLiteInstance:
        raise NotFound(f"box {record.box_id} has no kept files to come back from", op="restore")

    async def destroy(self, record: InstanceRecord) -> None:
        with contextlib.suppress(NotFound):
            async with translate_errors("destroy"):
                await self._boxes.remove(_name(record.box_id, record.keeper), force=True)

    async def close(self) -> None:
        """Do nothing: machines go on, and the runtime releases them when the process ends."""


def _name(box_id: str, keeper: str) -> str:
    return f"{_PREFIX}-{box_id}-{keeper}"


async def _run(box: Any, script: str) -> int:
    running = await box.exec("/bin/sh", ["-c", script], user="0:0")
    return int((await running.wait()).exit_code)


async def _demand(box: Any, script: str) -> None:
    code = await _run(box, script)
    if code:
        raise EngineError(f"BoxLite: a step of making the box ended with {code}", op="create")
