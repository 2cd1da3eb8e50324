"""Replacing a box's container by a new one that has other files, because a live container cannot change its own.

The new container is made beside the old one and filled; then the box continues in it, the old one is removed, and the
new one gets its name. Until the old one is gone it is the box for every keeper that looks for it: a keeper that dies on
the way leaves the box as it was. The volumes of a persistent box are replaced together with its container.
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

from hutch.errors import Conflict, NotFound
from hutch.model.spec import Order
from hutch.providers.base import InstanceRecord
from hutch.providers.docker import container_spec
from hutch.providers.docker import labels as naming
from hutch.providers.docker.container_spec import Bind, BoxParameters, ImageFacts
from hutch.providers.docker.context import EngineContext
from hutch.providers.docker.engine.api import Json
from hutch.providers.docker.instance import ContainerInstance, Reached
from hutch.providers.docker.layers.box_files import BoxFiles, Spool
from hutch.providers.docker.objects import images, mounts

Reach = Callable[[InstanceRecord, Order, ImageFacts, Json], Reached]
"""Says how a new container is reached, given what the engine reports about it."""


class Replacement:
    """Makes the new container of one box."""

    def __init__(
        self, context: EngineContext, box: ContainerInstance, order: Order, parameters: BoxParameters, reach: Reach
    ) -> None:
        self._context = context
        self._engine = context.engine
        self._box = box
        self._order = order
        self._generation = secrets.token_hex(3) if container_spec.kept(order.spec) else ""
        self._parameters = parameters._replace(generation=self._generation)
        self._reach = reach
        self._name = naming.container(order.box_id)
        self._next = naming.next_container(order.box_id)

    async def perform(self, files: Spool) -> None:
        """Replace it, or leave everything as it was."""
        old = await self._engine.inspect(self._name)
        if old is None:
            raise NotFound(f"box {self._order.box_id} no longer runs", op="rollback")
        await self._engine.remove(self._next)  # of a keeper that died
        try:
            await self._fill(old, files)
        except BaseException:
            await asyncio.shield(self._remove(self._next, self._volumes(self._generation)))
            raise
        await self._remove(self._name, [])
        await self._engine.rename(self._next, self._name)
        await self._remove("", [name for name in volumes_of(old) if naming.generation(name) != self._generation])

    async def _fill(self, old: Json, files: Spool) -> None:
        image = images.facts(
            await self._engine.image(str(old["Image"])) or {"Id": old["Image"]}, self._order.spec.image
        )
        parameters = self._parameters._replace(binds=_binds(old))
        volumes = self._volumes(self._generation)
        for volume in volumes:
            await self._engine.create_volume(volume, naming.labels(self._order, parameters.instance))
        if volumes and parameters.dialect.gives:
            await mounts.give(self._engine, volumes, container_spec.user_of(image, parameters))
        await self._engine.create(self._next, container_spec.container(self._order, image, parameters))
        await self._engine.start(self._next)
        walls = await self._context.walls() if parameters.network else None
        if walls is not None:
            await walls.check(self._order.box_id)
        record = self._box.record.but(data={**self._box.record.data, **_stored(volumes)})
        reached = self._reach(record, self._order, image, await self._engine.inspect(self._next) or {})
        link = await reached.connect()
        try:
            if mounts.shown(self._order) and await mounts.comparable(self._context):
                await mounts.verify(link, self._order)
            user = container_spec.user_of(image, parameters)
            await BoxFiles(self._engine, self._context.bundle, self._next, user).unpack(files)
            if busy := await BoxFiles(self._engine, self._context.bundle, self._name, user).processes():
                raise Conflict(
                    f"box {self._order.box_id} has begun to work: process {busy[0]}",
                    remedy="wait for its jobs, end them, or pass kill=True",
                )
            await self._box.move_to(reached)
        finally:
            link.close()

    def _volumes(self, generation: str) -> list[str]:
        return [naming.volume(self._order.box_id, part, generation) for part in container_spec.kept(self._order.spec)]

    async def _remove(self, container: str, volumes: list[str]) -> None:
        if container:
            await self._engine.remove(container)
        for volume in volumes:
            await self._engine.remove_volume(volume)


def volumes_of(inspected: Json) -> list[str]:
    """The volumes of a persistent box's parts that a container has mounted."""
    places = (container_spec.HOME, container_spec.WORKSPACE)
    return [
        str(each["Name"])
        for each in inspected.get("Mounts") or ()
        if each.get("Type") == "volume" and each.get("Destination") in places
    ]


def _binds(inspected: Json) -> tuple[Bind, ...]:
    return tuple(
        Bind(str(each["Source"]), str(each["Destination"]), bool(each.get("RW")))
        for each in inspected.get("Mounts") or ()
        if each.get("Type") == "bind"
    )


def _stored(volumes: list[str]) -> dict[str, Any]:
    return {"volumes": volumes, "store": volumes[0]} if volumes else {}


async def recovered(context: EngineContext, box_id: str) -> Json | None:
    """Inspect a box's container. One that should have taken its place does so if the old one is already gone."""
    name, other = naming.container(box_id), naming.next_container(box_id)
    found = await context.engine.inspect(name)
    if found is None and await context.engine.inspect(other) is not None:
        await context.engine.rename(other, name)
        found = await context.engine.inspect(name)
    return found
