"""Mounts of host paths: named as the engine knows them, and proven to be the files that policy had checked.

The engine may see other files than we do under the same name: we may run in a container, it may run on another machine.
On the same kernel a mount is known by device and inode, which the guest reports before any command has run. Elsewhere
a file with a random name is written into the directory, and the engine has to find it.
"""

import io
import os
import sys
import tarfile
import time

import msgspec

from hutch.errors import FileMissing, Refused
from hutch.model.spec import CheckedMount, MountMode, Order
from hutch.providers.docker import container_spec
from hutch.providers.docker.container_spec import Bind
from hutch.providers.docker.context import EngineContext
from hutch.providers.docker.engine.api import Engine
from hutch.providers.docker.objects.helper_containers import helper_container, why_not_shared
from hutch.providers.docker.objects.path_rules import engine_path, translated
from hutch.providers.guest_client.answers import checked
from hutch.providers.guest_client.link import Link


class _Identity(msgspec.Struct, frozen=True):
    dev: int = 0
    ino: int = 0
    error: str = ""


async def binds(order: Order, context: EngineContext) -> tuple[Bind, ...]:
    """Return every mount of the order. Raises Refused or FileMissing before anything is made (B11)."""
    found = []
    for place in shown(order):
        _check(place)
        source = engine_path(translated(place.real, context.settings.paths), sys.platform)
        bind = Bind(source, container_spec.target(place.target), place.mode is MountMode.RW)
        if not await comparable(context):
            await _prove(context, place, bind)
        found.append(bind)
    return tuple(found)


def shown(order: Order) -> tuple[CheckedMount, ...]:
    return tuple(place for place in (order.places.workspace, *order.places.mounts) if place is not None)


async def comparable(context: EngineContext) -> bool:
    """Return whether inodes inside a container are those of this machine."""
    return context.machine.is_direct and await context.is_near()


async def verify(link: Link, order: Order) -> None:
    """Ask the guest, before any command has run, whether these very inodes are mounted. Raises Refused if not."""
    mounted = shown(order)
    if not mounted:
        return
    answer = await link.request("identities", paths=[container_spec.target(place.target) for place in mounted])
    for place, found in zip(mounted, checked(answer.get("found"), list[_Identity]), strict=True):
        if (found.dev, found.ino) != (place.dev, place.ino):
            raise _not_seen(place, found.error or "it shows another file of that name")


async def give(engine: Engine, volumes: list[str], user: str) -> None:
    """Give new volumes, which belong to root, to the box's user, through a container that is never started."""
    uid, gid = map(int, user.split(":"))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in volumes:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, 0o755, uid, gid
            entry.mtime = int(time.time())
            tar.addfile(entry)
    mounts = [{"Type": "volume", "Source": name, "Target": f"/given/{name}"} for name in volumes]
    async with helper_container(engine, mounts) as container:
        await engine.put_archive(container, "/given", packed.getvalue())


def _check(place: CheckedMount) -> None:
    try:
        found = os.stat(place.real, follow_symlinks=False)
    except FileNotFoundError as error:
        raise FileMissing(f"cannot mount {place.real}: it is gone", op="create") from error
    except OSError as error:
        raise Refused(f"cannot mount {place.real}: {error.strerror}", op="create") from error
    if (found.st_dev, found.st_ino) != (place.dev, place.ino) or os.path.realpath(place.real) != place.real:
        raise Refused(f"{place.real} was replaced after it had been allowed", op="create")


async def _prove(context: EngineContext, place: CheckedMount, bind: Bind) -> None:
    """Prove the mount by a probe file in its directory, or in the directory that a single file is in."""
    directory, source = place.real, bind.source
    if not os.path.isdir(directory):
        directory, source = os.path.dirname(directory), os.path.dirname(source)
    if obstacle := await why_not_shared(context.engine, directory, source):
        raise _not_seen(place, obstacle)


def _not_seen(place: CheckedMount, reason: str) -> Refused:
    return Refused(
        f"the engine does not see our {place.real}: {reason}",
        op="create",
        remedy="if Hutch runs in a container, say in the provider's settings how paths differ: "
        'paths = { "/ours" = "/the/engine\'s" }',
    )
