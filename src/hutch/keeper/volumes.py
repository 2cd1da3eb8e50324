"""Volumes: named directories that outlive boxes, each of one owner."""

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

from hutch.errors import Conflict, HutchError, Invalid, NotFound
from hutch.keeper.boxes.records import LOCAL_OWNER
from hutch.keeper.capacity import Inventory
from hutch.keeper.locks import run_uncancelled
from hutch.keeper.store.store import Store
from hutch.model.boxes import VolumeInfo
from hutch.model.ids import digest, is_name
from hutch.model.record import Record
from hutch.model.spec import CheckedMount, MountMode

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
    """Creates, finds and removes them. The directory is made before the note, and taken away before it: under another
    name, so that what is made anew is not removed with it."""

    def __init__(self, store: Store, directory: Path, inventory: Inventory) -> None:
        self._store = store
        self._directory = directory
        self._inventory = inventory

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
        path.mkdir(exist_ok=True, mode=0o700)  # a removal may have taken the one that was there before the note
        return volume

    async def all(self, owner: str | None = LOCAL_OWNER) -> tuple[Volume, ...]:
        notes = await self._store.notes(KIND)
        volumes = (Volume.from_json(body) for body in notes.values())
        return tuple(volume for volume in volumes if owner in (None, volume.owner))

    async def get(self, name: str, owner: str = LOCAL_OWNER) -> Volume:
        """NotFound also for another owner's volume: its existence is not this owner's business."""
        body = (await self._store.notes(KIND)).get(_key(owner, name))
        if body is None:
            raise _missing(name)
        return Volume.from_json(body)

    async def place(self, name: str, mode: MountMode, owner: str = LOCAL_OWNER) -> CheckedMount:
        """The volume as a box's workspace, pinned to the inode that is there now."""
        volume = await self.get(name, owner)
        try:
            found = os.stat(volume.path, follow_symlinks=False)
        except FileNotFoundError:  # it is being removed
            raise _missing(name) from None
        return CheckedMount(real=volume.path, target="/workspace", mode=mode, dev=found.st_dev, ino=found.st_ino)

    async def in_use(self, owner: str = LOCAL_OWNER) -> frozenset[str]:
        """The volumes that the owner's boxes work in, or will; it holds until the next `await`."""
        boxes = (await self._inventory.all()).values()
        sources = {box.spec.workspace.source for box in boxes if box.owner == owner}
        return frozenset(source.removeprefix(PREFIX) for source in sources if source.startswith(PREFIX))

    async def remove(self, name: str, owner: str = LOCAL_OWNER) -> None:
        """Conflict while a box works in it."""
        volume = await self.get(name, owner)
        if name in await self.in_use(owner):
            raise Conflict(f"volume {name} is in use by a box", retryable=True, remedy="destroy the box first")
        taken = f"{volume.path}.{os.urandom(6).hex()}"
        # Without an `await` since the look: a box that is ordered from now on does not find it.
        with suppress(FileNotFoundError):  # by a removal that did not come to its end
            os.rename(volume.path, taken)
        await run_uncancelled(self._forget(volume, taken))

    async def _forget(self, volume: Volume, taken: str) -> None:
        try:
            await self._store.drop_note(KIND, _key(volume.owner, volume.name))
        except HutchError:
            with suppress(FileNotFoundError):
                os.rename(taken, volume.path)
            raise
        from shutil import rmtree  # rarely needed, and slow to load

        if os.path.isdir(taken):
            await asyncio.to_thread(rmtree, taken)


def _missing(name: str) -> NotFound:
    return NotFound(f"no volume {name}", remedy=f"see `hutch volume list`, or `hutch volume create {name}`")


def _key(owner: str, name: str) -> str:
    return f"{owner}/{name}"


def _folder(owner: str, name: str) -> str:
    """Two owners' volumes of one name never meet, whatever characters the owner's name has."""
    return digest(f"{len(owner)}:{owner}/{name}".encode())[:24]
