"""Volumes: named directories that outlive boxes, each of one owner."""

import asyncio
import os
import time
from pathlib import Path

from hutch.errors import Conflict, Invalid, NotFound
from hutch.keeper.records import LOCAL_OWNER
from hutch.keeper.store import Store
from hutch.model.boxes import VolumeInfo
from hutch.model.digests import digest
from hutch.model.ids import is_name
from hutch.model.places import CheckedMount
from hutch.model.record import Record
from hutch.model.spec_kinds import MountMode

KIND = "volume"
PREFIX = "volume:"
"""Of a workspace's source."""


class Volume(Record, frozen=True, kw_only=True):
    """One volume as the store knows it."""

    name: str
    owner: str
    path: str
    created_at: float

    def shown(self) -> VolumeInfo:
        return VolumeInfo(name=self.name, owner=self.owner, created_at=self.created_at)


class Volumes:
    """Creates, finds and removes them. The directory is made before the note, and removed after it."""

    def __init__(self, store: Store, directory: Path) -> None:
        self._store = store
        self._directory = directory

    async def create(self, name: str, owner: str = LOCAL_OWNER) -> Volume:
        if not is_name(name):
            raise Invalid(
                f"{name!r} is no name for a volume", remedy="letters, digits, dot, dash, underscore; at most 63"
            )
        path = self._directory / _folder(owner, name)
        volume = Volume(name=name, owner=owner, path=str(path), created_at=time.time())
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not await self._store.put_note(KIND, _key(owner, name), volume.to_json(), new=True):
            raise Conflict(f"volume {name} exists", op="volume create")
        return volume

    async def all(self, owner: str | None = LOCAL_OWNER) -> tuple[Volume, ...]:
        notes = await self._store.notes(KIND)
        volumes = (Volume.from_json(body) for body in notes.values())
        return tuple(volume for volume in volumes if owner in (None, volume.owner))

    async def get(self, name: str, owner: str = LOCAL_OWNER) -> Volume:
        """NotFound also for another owner's volume: its existence is not this owner's business."""
        body = (await self._store.notes(KIND)).get(_key(owner, name))
        if body is None:
            raise NotFound(f"no volume {name}", remedy=f"see `hutch volume list`, or `hutch volume create {name}`")
        return Volume.from_json(body)

    async def place(self, name: str, mode: MountMode, owner: str = LOCAL_OWNER) -> CheckedMount:
        """The volume as a box's workspace, pinned to the inode that is there now."""
        volume = await self.get(name, owner)
        found = os.stat(volume.path, follow_symlinks=False)
        return CheckedMount(real=volume.path, target="/workspace", mode=mode, dev=found.st_dev, ino=found.st_ino)

    async def in_use(self, owner: str = LOCAL_OWNER) -> frozenset[str]:
        """The volumes that the owner's boxes work in."""
        sources = {record.spec.workspace.source for record in await self._store.all() if record.owner == owner}
        return frozenset(source.removeprefix(PREFIX) for source in sources if source.startswith(PREFIX))

    async def remove(self, name: str, owner: str = LOCAL_OWNER) -> None:
        """Conflict while a box works in it."""
        volume = await self.get(name, owner)
        if name in await self.in_use(owner):
            raise Conflict(f"volume {name} is in use by a box", retryable=True, remedy="destroy the box first")
        await self._store.drop_note(KIND, _key(owner, name))
        from shutil import rmtree  # rarely needed, and slow to load

        await asyncio.to_thread(rmtree, volume.path)


def _key(owner: str, name: str) -> str:
    return f"{owner}/{name}"


def _folder(owner: str, name: str) -> str:
    """Two owners' volumes of one name never meet, whatever characters the owner's name has."""
    return digest(f"{len(owner)}:{owner}/{name}".encode())[:24]
