"""Docker and Podman: each box is a hardened container whose first process is our guest, found by name and label."""

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from hutch.errors import BoxBroken, EngineError, HutchError, NotFound, Unavailable, Unsupported
from hutch.model.capabilities import Capabilities
from hutch.model.images import ImageDefaults
from hutch.model.spec import EffectiveSpec, NetworkMode, Order
from hutch.providers.base import Instance, InstanceRecord, Leftover, Provider
from hutch.providers.docker import cleanup, container_spec, context, guests
from hutch.providers.docker import labels as naming
from hutch.providers.docker import probe as probing
from hutch.providers.docker import settings as configuration
from hutch.providers.docker.container_spec import Bind, BoxParameters, ImageFacts
from hutch.providers.docker.context import EngineContext
from hutch.providers.docker.engine.api import Engine, Json
from hutch.providers.docker.engine.dialect import DOCKER, PODMAN, Dialect
from hutch.providers.docker.engine.http import EngineRefused
from hutch.providers.docker.instance import ContainerInstance, Reached
from hutch.providers.docker.lanes import FastLane
from hutch.providers.docker.layers.box_files import BoxFiles
from hutch.providers.docker.layers.replacement import recovered, volumes_of
from hutch.providers.docker.layers.state_volumes import StateVolumes
from hutch.providers.docker.objects import mounts, networks
from hutch.providers.docker.objects.helper_containers import BASE
from hutch.providers.docker.settings import LaneChoice

if TYPE_CHECKING:
    from hutch.providers.docker.layers.box_files import Spool
    from hutch.providers.docker.layers.layers import LayerParts

_GRACE_SECONDS = 30.0
"""How long a guest waits for a keeper until the clocks of its box are set again."""


class DockerProvider(Provider):
    """Boxes as containers of an engine with Docker's API; see docs/architecture.md."""

    name: ClassVar[str] = "docker"
    dialect: ClassVar[Dialect] = DOCKER

    def __init__(self) -> None:
        self._settings = configuration.Settings()
        self._context: EngineContext | None = None
        self._doubted = False
        """Set after a failure: the next probe must prove the engine again."""
        # Concurrent first callers connect to the engine once.
        self._meeting = asyncio.Lock()

    def configure(self, settings: Mapping[str, object]) -> None:
        self._settings = configuration.read(self.name, settings)
        self._context = None

    async def _engine(self) -> EngineContext:
        if self._context is None:
            async with self._meeting:
                if self._context is None:
                    engine = Engine(context.locate(self.name, self._settings))
                    self._context = await context.connect(engine, self._settings)
        return self._context

    # --- capabilities ----------------------------------------------------------------------------------------

    async def probe(self) -> Capabilities:
        doubted, self._doubted = self._doubted, False
        try:
            found = await self._engine()
        except HutchError as error:
            return probing.unusable(self.name, error)
        return await probing.probe(self.name, found, self._canary, anew=doubted)

    def forget_probe(self) -> None:
        self._context, self._doubted = None, True

    async def _canary(self, network: NetworkMode) -> probing.CanaryResult:
        """Make a real box of the empty image and report its guest's kernel status and what works inside."""
        found = await self._engine()
        order = probing.canary_order(self.name, BASE, network)
        box = await self.create(order, self.plan(order))
        try:
            await box.check()
            status = (await box.files.read("/proc/self/status")).decode("utf-8", "replace")
            devices = (await box.files.read("/proc/net/dev")).decode("utf-8", "replace").splitlines()[2:]
            interfaces = frozenset(line.partition(":")[0].strip() for line in devices) - {"lo"}
            pty = await probing.has_terminal(box, found.bundle)
            return probing.CanaryResult(status, pty=pty, interfaces=interfaces)
        finally:
            await box.close()
            await self.destroy(box.record)

    async def image(self, reference: str) -> ImageDefaults | None:
        return (await (await self._engine()).images.ensure(reference)).defaults

    async def needs_pull(self, reference: str) -> bool:
        return await (await self._engine()).images.needs_pull(reference)

    # --- creating --------------------------------------------------------------------------------------------

    def plan(self, order: Order) -> InstanceRecord:
        return self._plan(order, "")

    def _plan(self, order: Order, generation: str) -> InstanceRecord:
        parts = container_spec.kept(order.spec)
        data: dict[str, Any] = {
            "container": naming.container(order.box_id),
            "network": "" if order.spec.network is NetworkMode.OFF else naming.network(order.box_id),
            "volumes": [naming.volume(order.box_id, part, generation) for part in parts],
        }
        if data["volumes"]:
            data["store"] = naming.volume(order.box_id, "home", generation)
        return InstanceRecord(provider=self.name, box_id=order.box_id, keeper=order.keeper, data=data)

    async def create(self, order: Order, planned: InstanceRecord) -> ContainerInstance:
        found = await self._engine()
        _check_network(order.spec, found)
        await found.prepare()
        image = await found.images.ensure(order.spec.image)
        binds = await mounts.binds(order, found)
        # From here on the engine has parts of the box. It may still carry out a request that was given up, so a
        # cancelled creation runs to its end and is then undone.
        making = asyncio.ensure_future(self._make(found, order, planned, image, binds))
        try:
            return await asyncio.shield(making)
        except BaseException as error:
            await asyncio.shield(self._undo(making, planned))
            if isinstance(error, EngineRefused):
                raise self._failure(found, order, error) from error
            raise

    async def _make(
        self, found: EngineContext, order: Order, planned: InstanceRecord, image: ImageFacts, binds: tuple[Bind, ...]
    ) -> ContainerInstance:
        engine, name = found.engine, naming.container(order.box_id)
        store = str(planned.data.get("store") or "")
        parameters = self._parameters(found, order, binds)._replace(generation=naming.generation(store))
        labels = naming.labels(order, found.instance)
        volumes = [str(name) for name in cast(list[str], planned.data.get("volumes") or [])]
        for volume in volumes:
            await engine.create_volume(volume, labels)
        if volumes and self.dialect.gives and "restored" not in planned.data:
            await mounts.give(engine, volumes, container_spec.user_of(image, parameters))
        if parameters.network:
            await self._connect_network(found, order, labels)
        await engine.create(name, container_spec.container(order, image, parameters))
        await engine.start(name)
        walls = await found.walls() if parameters.network else None
        if walls is not None:
            await walls.check(order.box_id)
        inspected = await engine.inspect(name)
        data = {**planned.data, **guests.identify(found, inspected), "id": str((inspected or {}).get("Id") or name)}
        record = planned.but(data=data)
        if self._settings.lane is LaneChoice.FAST and record.data["lane"] != FastLane.name:
            raise Unsupported(
                "lane fast cannot be had: the container's processes are not to be seen from here",
                op="create",
                remedy='set lane = "auto"',
            )
        instance = self._instance(
            found,
            record,
            order.spec,
            options=guests.guest_options(order, image, watched=found.machine.is_watched),
            order=order,
        )
        try:
            await self._meet_guest(found, instance, order)
        except BaseException:
            await instance.close()
            raise
        return instance

    async def _meet_guest(self, found: EngineContext, instance: ContainerInstance, order: Order) -> None:
        """Wait for the guest's hello, which is the box's first real answer, and check its mounts."""
        try:
            link = await instance.link()
        except (BoxBroken, Unavailable) as error:
            said = await found.engine.logs(instance.container)
            raise EngineError(
                f"box {order.box_id} could not be made: its guest does not answer: {said or error.message}",
                op="create",
                details={"step": "guest"},
            ) from error
        if mounts.shown(order) and await mounts.comparable(found):
            await mounts.verify(link, order)

    def _parameters(self, found: EngineContext, order: Order, binds: tuple[Bind, ...]) -> BoxParameters:
        return BoxParameters(
            bundle=found.bundle,
            instance=found.instance,
            runtime=self._settings.runtime,
            user=self._settings.user,
            cgroup_parent=self._settings.cgroup_parent,
            network="" if order.spec.network is NetworkMode.OFF else naming.network(order.box_id),
            binds=binds,
            private_cgroups=found.machine.cgroups == 2,
            walled=found.machine.is_walled,
            dialect=self.dialect,
        )

    async def _connect_network(self, found: EngineContext, order: Order, labels: dict[str, str]) -> None:
        options = self.dialect.network_options(networks.bridge(order.box_id))
        subnet = await networks.create(found.engine, order.box_id, labels, self._settings.addresses, options=options)
        walls = await found.walls()
        if walls is not None:
            await walls.protect(order.box_id, subnet, order.spec.allow_private)

    async def _undo(self, making: "asyncio.Future[ContainerInstance]", planned: InstanceRecord) -> None:
        """Leave nothing of the box on the engine, whatever went wrong."""
        await asyncio.wait({making})
        try:
            if not making.cancelled() and making.exception() is None:
                with contextlib.suppress(HutchError, OSError):  # nobody wants this box any more
                    await making.result().close()
        finally:
            await self._discard(planned, keep_store="restored" in planned.data)

    def _failure(self, found: EngineContext, order: Order, error: EngineRefused) -> HutchError:
        found.forget_guest_volume()  # if the volume is what is missing, the next creation makes it again
        return EngineError(
            f"box {order.box_id} could not be made: {error.message}",
            op="create",
            details={"step": error.op, "status": error.status},
        )

    # --- connecting ------------------------------------------------------------------------------------------

    def _instance(
        self,
        found: EngineContext,
        record: InstanceRecord,
        spec: EffectiveSpec,
        *,
        options: bytes | None = None,
        order: Order | None = None,
    ) -> ContainerInstance:
        def layer_parts(box: ContainerInstance) -> "LayerParts":
            return self._layer_parts(found, box, order)

        reached = guests.reach(found, self.dialect, record, spec, options)
        lived = options is None or "restored" in record.data
        return ContainerInstance(reached, spec, found.engine, layer_parts, lived=lived)

    def _layer_parts(self, found: EngineContext, box: ContainerInstance, order: Order | None) -> "LayerParts":
        from hutch.providers.docker.layers.layers import LayerParts
        from hutch.providers.docker.layers.replacement import Replacement

        async def trees() -> list[str]:
            return container_spec.layered(box.spec, await found.images.ensure(box.spec.image))

        def reach(record: InstanceRecord, order: Order, image: ImageFacts, inspected: Json) -> Reached:
            data = {**record.data, **guests.identify(found, inspected), "id": str(inspected["Id"])}
            options = guests.guest_options(order, image, watched=found.machine.is_watched)
            return guests.reach(found, self.dialect, record.but(data=data), order.spec, options)

        async def replace(files: "Spool") -> None:
            # A handle that attached to the box does not know its secrets, which are never written.
            known = order or Order(
                box_id=box.record.box_id, keeper=box.record.keeper, spec=box.spec.but(secrets={}),
                orphan_grace_sec=_GRACE_SECONDS,
            )  # fmt: skip
            known = known.but(spec=known.spec.but(limits=box.limits))
            await Replacement(found, box, known, self._parameters(found, known, ()), reach).perform(files)

        async def files() -> BoxFiles:
            image = await found.images.ensure(box.spec.image)
            return BoxFiles(found.engine, found.bundle, box.container, image.user or self._settings.user)

        return LayerParts(StateVolumes(found.engine, found.instance), files, trees, replace)

    async def fork(
        self, order: Order, planned: InstanceRecord, source: Instance, state: Awaitable[str]
    ) -> tuple[ContainerInstance, str]:
        frozen = await state
        made = await self.create(order, planned)
        try:
            await made.layers.fill(frozen)
        except BaseException:
            await made.close()
            await asyncio.shield(self.destroy(made.record))
            raise
        return made, frozen

    # --- finding again ---------------------------------------------------------------------------------------

    async def attach(self, record: InstanceRecord, spec: EffectiveSpec) -> ContainerInstance:
        found = await self._engine()
        name = naming.container(record.box_id)
        inspected = await recovered(found, record.box_id)
        state = (inspected or {}).get("State") or {}
        if not state.get("Running"):
            raise NotFound(f"box {record.box_id} no longer runs", op="attach")
        if state.get("Paused"):
            await found.engine.unpause(name)  # the keeper that paused it is gone
        assert inspected is not None
        kept: dict[str, Any] = {"volumes": volumes} if (volumes := volumes_of(inspected)) else {}
        data = {**record.data, "container": name, "id": str(inspected["Id"]), **kept}
        data |= guests.identify(found, inspected)
        instance = self._instance(found, record.but(data=data), spec)
        try:
            await instance.link()
        except BoxBroken as error:
            await instance.close()
            state = ((await found.engine.inspect(name)) or {}).get("State") or {}
            if not state.get("Running"):
                raise NotFound(f"box {record.box_id} no longer runs", op="attach") from error
            raise
        except BaseException:
            await instance.close()
            raise
        return instance

    async def restore(self, order: Order, record: InstanceRecord) -> ContainerInstance:
        found = await self._engine()
        generation = await self._kept_generation(found, record)
        if generation is None:
            raise NotFound(f"box {record.box_id} has no kept files to come back from", op="restore")
        await self._discard(record, keep_store=True)
        planned = self._plan(order, generation)
        return await self.create(order, planned.but(data={**planned.data, "restored": True}))

    async def _kept_generation(self, found: EngineContext, record: InstanceRecord) -> str | None:
        """Return which volumes of a box that does not run are its own; None if it has none.

        There is more than one generation only if its keeper died while it was going back to a state: then those of
        its container count, and without one the first, since the last may be incomplete.
        """
        names = [str(each["Name"]) for each in await found.engine.volumes(f"{naming.BOX}={record.box_id}")]
        known = sorted({naming.generation(name) for name in names})
        if len(known) > 1 and (inspected := await recovered(found, record.box_id)) is not None:
            known = [naming.generation(name) for name in volumes_of(inspected)] or known
        return known[0] if known else None

    async def stop(self, record: InstanceRecord) -> None:
        await self._discard(record, keep_store=True)

    async def destroy(self, record: InstanceRecord) -> None:
        await self._discard(record, keep_store=False)

    async def _discard(self, record: InstanceRecord, *, keep_store: bool) -> None:
        """Remove the box's objects by name alone, because a creation that died half-way has left no other trace. A
        record that comes from a list does not say what there is, so everything is looked for."""
        found = await self._engine()
        await asyncio.gather(
            found.engine.remove(naming.container(record.box_id)),
            found.engine.remove(naming.next_container(record.box_id)),
            *([] if keep_store else [StateVolumes(found.engine, found.instance).drop(record.box_id)]),
        )
        if record.data.get("network", True):
            await found.engine.remove_network(naming.network(record.box_id))
            walls = await found.walls()
            if walls is not None:
                await walls.remove(record.box_id)
        if not keep_store and record.data.get("volumes", True):
            for volume in await found.engine.volumes(f"{naming.BOX}={record.box_id}"):
                await found.engine.remove_volume(str(volume["Name"]))

    async def list(self) -> tuple[InstanceRecord, ...]:
        found = await self._engine()
        return await cleanup.records(self.name, found)

    async def sweep(self, *, dry_run: bool = False) -> tuple[Leftover, ...]:
        return await cleanup.sweep(await self._engine(), dry_run=dry_run)

    async def close(self) -> None:
        """Do nothing, because every request has a connection of its own."""


class PodmanProvider(DockerProvider):
    """Boxes as containers of Podman, which has the same API in a dialect of its own."""

    name: ClassVar[str] = "podman"
    dialect: ClassVar[Dialect] = PODMAN


def _check_network(spec: EffectiveSpec, found: EngineContext) -> None:
    if spec.network is NetworkMode.OFF:
        return
    if spec.network is not NetworkMode.ON:
        # Without a filter this would be an open network under a name that promises a closed one.
        raise Unsupported(f"network {spec.network.value} is not available in containers", op="create")
    if found.no_network:
        raise Unsupported(f"network on is not available here: {found.no_network}", op="create")
