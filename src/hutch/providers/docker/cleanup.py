"""Finds our boxes on an engine, and removes what belongs to no box.

Only objects with the label of our own instance are listed: another Hutch on the same engine has keepers of its own, and
we cannot know whether they live (lesson 10).
"""

import time
from datetime import datetime

from hutch.model.ids import BoxId
from hutch.providers.base import InstanceRecord, Leftover
from hutch.providers.docker import labels as naming
from hutch.providers.docker.context import EngineContext

STALE_SECONDS = 3600.0
"""The age after which a helper container, or an old guest volume that nobody uses, is removed."""


async def records(provider: str, context: EngineContext) -> tuple[InstanceRecord, ...]:
    """Return the boxes that run, and the stopped ones, of which only volumes exist."""
    found: dict[str, InstanceRecord] = {}
    volumes: dict[str, list[str]] = {}
    keepers: dict[str, str] = {}
    for volume in await context.engine.volumes(f"{naming.INSTANCE}={context.instance}"):
        labels = volume.get("Labels") or {}
        if box_id := labels.get(naming.BOX):
            volumes.setdefault(box_id, []).append(str(volume["Name"]))
            keepers[box_id] = labels.get(naming.KEEPER, "")
    for container in await context.engine.containers({naming.BOX: "", naming.INSTANCE: context.instance}):
        labels = container.get("Labels") or {}
        keepers[labels[naming.BOX]] = labels.get(naming.KEEPER, "")
    for box_id, keeper in keepers.items():
        data: dict[str, str | int | float | bool | list[str] | None] = {"container": naming.container(box_id)}
        if kept := volumes.get(box_id):
            data |= {"store": naming.volume(box_id, "home"), "volumes": sorted(kept)}
        found[box_id] = InstanceRecord(provider=provider, box_id=BoxId(box_id), keeper=keeper, data=data)
    return tuple(found.values())


async def sweep(context: EngineContext, *, dry_run: bool) -> tuple[Leftover, ...]:
    """Remove networks and filters of boxes that are gone, helpers of dead processes, and old guest volumes."""
    engine = context.engine
    boxes = {each["Labels"][naming.BOX] for each in await engine.containers({naming.BOX: ""})}
    gone: list[Leftover] = []
    for network in await engine.networks(f"{naming.INSTANCE}={context.instance}"):
        box_id = (network.get("Labels") or {}).get(naming.BOX)
        if box_id not in boxes and _seconds_since(network.get("Created")) > STALE_SECONDS:
            name = str(network["Name"])
            if dry_run or await engine.remove_network(name):
                gone.append(Leftover(kind="network", name=name))
                walls = await context.walls() if box_id and not dry_run else None
                if box_id and walls is not None:
                    await walls.remove(box_id)
    for container in await engine.containers({naming.THROWAWAY: ""}):
        if time.time() - int(container["Labels"][naming.THROWAWAY] or 0) > STALE_SECONDS:
            if not dry_run:
                await engine.remove(container["Id"])
            gone.append(Leftover(kind="container", name=container["Names"][0].lstrip("/")))
    for volume in await engine.volumes(naming.GUEST):
        name = str(volume["Name"])
        old = (
            name != naming.guest_volume(context.bundle.digest)
            and _seconds_since(volume.get("CreatedAt")) > STALE_SECONDS
        )
        # The engine refuses to remove what a container uses.
        if old and (dry_run or await engine.remove_volume(name)):
            gone.append(Leftover(kind="volume", name=name))
    return tuple(gone)


def _seconds_since(created: object) -> float:
    """Return the seconds since an engine's time stamp, or 0 if it cannot be parsed, which keeps the object."""
    try:
        # Engines write nine digits of a second's fraction, more than Python reads.
        head, _, rest = str(created).partition(".")
        zone = rest.lstrip("0123456789") if rest else ""
        return time.time() - datetime.fromisoformat((head + zone).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0
