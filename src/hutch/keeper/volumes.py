"""Volumes: named directories that outlive boxes. Each belongs to one owner."""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hutch.errors import Conflict, HutchError, Invalid, NotFound, QuotaExceeded
from hutch.keeper.boxes.records import LOCAL_OWNER
from hutch.keeper.capacity import Inventory
from hutch.keeper.locks import run_uncancelled
from hutch.keeper.store.store import Store
from hutch.model.boxes import VolumeInfo
from hutch.model.ids import digest, is_name
from hutch.model.record import Record
from hutch.model.spec import CheckedMount, EffectiveSpec, MountMode, volume_of
from hutch.policy.quotas import Quota, check_kept, quota_of

if TYPE_CHECKING:
    from hutch.keeper.boxes.live import Live
    from hutch.keeper.volume_usage import VolumeWatchdog

KIND = "volume"
FULL_REMEDY = "remove files from the volumes, or raise volume_mb in the owner's quota"
_ENTRIES_AT_ONCE = 5000
"""Entries of a volume that are counted before the scan's state is looked at."""


class Volume(Record, frozen=True, kw_only=True):
    """One volume as the store holds it."""

    name: str
    owner: str
    path: str
    created_at: float

    def shown(self) -> VolumeInfo:
        return VolumeInfo(name=self.name, owner=self.owner, created_at=self.created_at)


class Volumes:
    """Creates, finds and removes volumes.

    The directory is created before the note in the store. Before the note is removed, the directory is renamed, so
    that a volume created again under the same name is not removed with it.
    """

    def __init__(
        self, store: Store, directory: Path, inventory: Inventory, quotas: Mapping[str, Quota] | None = None
    ) -> None:
        self._store = store
        self._directory = directory
        self._inventory = inventory
        self._quotas = quotas or {}
        self.watchdog: VolumeWatchdog | None = None
        """None where no owner's volumes are limited."""
        self._creating = asyncio.Lock()
        """Held from counting an owner's volumes to writing the next one, so that two calls cannot pass his quota."""

    async def create(self, name: str, owner: str = LOCAL_OWNER) -> Volume:
        if not is_name(name):
            raise Invalid(
                f"{name!r} is no name for a volume", remedy="letters, digits, dot, dash, underscore; at most 63"
            )
        path = self._directory / _folder(owner, name)
        volume = Volume(name=name, owner=owner, path=str(path), created_at=time.time())
        async with self._creating:
            if limit := quota_of(self._quotas, owner).volumes:
                check_kept("volumes", limit, len(await self.all(owner)), owner)
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not await self._store.put_note(KIND, _key(owner, name), volume.to_json(), new=True):
                raise Conflict(f"volume {name} exists", op="volume create")
        path.mkdir(exist_ok=True, mode=0o700)  # A removal may have renamed the earlier one.
        return volume

    async def all(self, owner: str | None = LOCAL_OWNER) -> tuple[Volume, ...]:
        notes = await self._store.notes(KIND)
        volumes = (Volume.from_json(body) for body in notes.values())
        return tuple(volume for volume in volumes if owner in (None, volume.owner))

    async def get(self, name: str, owner: str = LOCAL_OWNER) -> Volume:
        """Return a volume. Another owner's volume is NotFound too: its existence is not this owner's business."""
        body = (await self._store.notes(KIND)).get(_key(owner, name))
        if body is None:
            raise _missing(name)
        return Volume.from_json(body)

    async def check_mount(
        self, name: str, mode: MountMode, owner: str = LOCAL_OWNER, target: str = "/workspace"
    ) -> CheckedMount:
        """Return the volume as a mount of a box, pinned to the inode that is there now.

        Raises:
            QuotaExceeded: The box would write to it, and the owner's volumes are full.
        """
        volume = await self.get(name, owner)
        if mode is MountMode.RW and (limit := quota_of(self._quotas, owner).volume_mb):
            used = await self.used_bytes(owner)
            if used > limit << 20:
                raise full(used / (1 << 20), limit, "create")
        try:
            found = os.stat(volume.path, follow_symlinks=False)
        except FileNotFoundError:  # It is being removed.
            raise _missing(name) from None
        return CheckedMount(real=volume.path, target=target, mode=mode, dev=found.st_dev, ino=found.st_ino)

    async def used_bytes(self, owner: str) -> int:
        """Count what all volumes of an owner hold."""
        paths = [volume.path for volume in await self.all(owner)]
        return await asyncio.to_thread(lambda: sum(map(_bytes_below, paths)))

    def watch(self, boxes: "Callable[[], Iterable[Live]]") -> None:
        """Watch from now on what boxes write to volumes, if any owner's volumes are limited."""
        if any(quota.volume_mb for quota in self._quotas.values()):
            from hutch.keeper.volume_usage import VolumeWatchdog  # Few operators limit volumes.

            self.watchdog = VolumeWatchdog(self, boxes, self._quotas)

    async def close(self) -> None:
        if self.watchdog is not None:
            await self.watchdog.close()

    async def in_use(self, owner: str = LOCAL_OWNER) -> frozenset[str]:
        """Return the volumes that the owner's boxes use, or will use; the answer is valid until the next `await`."""
        boxes = (await self._inventory.all()).values()
        return frozenset(name for box in boxes if box.owner == owner for name in volumes_of(box.spec))

    async def remove(self, name: str, owner: str = LOCAL_OWNER) -> None:
        """Remove a volume; Conflict while a box uses it."""
        volume = await self.get(name, owner)
        if name in await self.in_use(owner):
            raise Conflict(f"volume {name} is in use by a box", retryable=True, remedy="destroy the box first")
        renamed = f"{volume.path}.{os.urandom(6).hex()}"
        # There was no `await` since the check, so a box that is created from now on does not find the volume.
        with suppress(FileNotFoundError):  # An earlier removal did not finish.
            os.rename(volume.path, renamed)
        await run_uncancelled(self._forget(volume, renamed))

    async def _forget(self, volume: Volume, renamed: str) -> None:
        try:
            await self._store.drop_note(KIND, _key(volume.owner, volume.name))
        except HutchError:
            with suppress(FileNotFoundError):
                os.rename(renamed, volume.path)
            raise
        from shutil import rmtree  # It is rarely needed and slow to load.

        if os.path.isdir(renamed):
            await asyncio.to_thread(rmtree, renamed)


def volumes_of(spec: EffectiveSpec) -> frozenset[str]:
    """Return the names of the volumes that a box of this spec uses, as its workspace or elsewhere."""
    sources = (spec.workspace.source, *(mount.source for mount in spec.mounts))
    return frozenset(name for source in sources if (name := volume_of(source)) is not None)


def full(used: float, limit: float, op: str) -> QuotaExceeded:
    """Return the error of an operation that would add files to volumes that are full."""
    return QuotaExceeded(
        f"the owner's volumes hold {used:.0f} MB and may hold {limit:.0f}",
        op=op, details={"limit": limit, "used": used}, retryable=False, remedy=FULL_REMEDY,
    )  # fmt: skip


def _bytes_below(path: str) -> int:
    from hutch.providers.native.watch.disk_usage import DiskScan  # Few owners' volumes are limited.

    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0  # it is being removed
    try:
        scan = DiskScan(directory)
    finally:
        os.close(directory)
    try:
        while not scan.advance(_ENTRIES_AT_ONCE):
            pass
        return scan.used.bytes
    finally:
        scan.close()


def _missing(name: str) -> NotFound:
    return NotFound(f"no volume {name}", remedy=f"see `hutch volume list`, or `hutch volume create {name}`")


def _key(owner: str, name: str) -> str:
    return f"{owner}/{name}"


def _folder(owner: str, name: str) -> str:
    """Volumes of two owners never share a directory, whatever characters their names have."""
    return digest(f"{len(owner)}:{owner}/{name}".encode())[:24]
