"""States of a container box's files, each in a volume of the engine, so that they are where the box is.

A volume is filled and read through helper containers, which are never started. One that was not filled to its end,
because its keeper died, is known to no record and is removed by the next `drop`.
"""

import asyncio
import io
import os
import re
import secrets
import shutil
import tarfile
from collections.abc import AsyncIterator
from typing import cast

from hutch.errors import EngineError, NotFound
from hutch.providers.docker import labels
from hutch.providers.docker.engine.api import Engine
from hutch.providers.docker.engine.http import Upload
from hutch.providers.docker.layers.box_files import Spool, spool
from hutch.providers.docker.objects.helper_containers import ensure_base_image, helper_container

_STATE = re.compile(r"[a-z0-9]{20}-s[0-9a-f]{12}")
_PLACE, _FILE = "/state", "files"
_PIECE = 1 << 20


class StateVolumes:
    """The volumes of all boxes' states on one engine."""

    def __init__(self, engine: Engine, instance: str) -> None:
        self._engine = engine
        self._instance = instance

    async def store(self, box_id: str, files: Spool) -> str:
        """Copy a stream of files to a new volume, and return the state's name."""
        state = f"{box_id}-s{secrets.token_hex(6)}"
        await ensure_base_image(self._engine)
        await self._engine.create_volume(_volume(state), {labels.STATE: box_id, labels.INSTANCE: self._instance})
        try:
            async with helper_container(self._engine, [_mount(state, read_only=False)]) as container:
                await self._engine.put_archive(container, _PLACE, _packed(files))
        except BaseException:
            await asyncio.shield(self._engine.remove_volume(_volume(state)))
            raise
        return state

    async def load(self, state: str, into: Spool) -> None:
        """Copy the files of a state from its volume.

        Raises:
            NotFound: There is no such state.
        """
        if not _STATE.fullmatch(state) or await self._engine.volume(_volume(state)) is None:
            raise NotFound(f"there is no such state of a box's files: {state[:80]!r}", op="layers")
        with spool() as packed:
            async with helper_container(self._engine, [_mount(state, read_only=True)]) as container:
                async for piece in self._engine.archive_pieces(container, f"{_PLACE}/{_FILE}"):
                    await asyncio.to_thread(packed.write, piece)
            await asyncio.to_thread(_unpack, packed, into)

    async def drop(self, box_id: str, keep: tuple[str, ...] = ()) -> None:
        """Remove the states of a box, all but these."""
        for volume in await self._engine.volumes(f"{labels.STATE}={box_id}"):
            name = str(volume["Name"])
            if name not in map(_volume, keep):
                await self._engine.remove_volume(name)


def _volume(state: str) -> str:
    return f"hutch-{state}"


def _mount(state: str, *, read_only: bool) -> dict[str, object]:
    return {
        "Type": "volume", "Source": _volume(state), "Target": _PLACE, "ReadOnly": read_only,
        "VolumeOptions": {"NoCopy": True},
    }  # fmt: skip


def _packed(files: Spool) -> Upload:
    """An archive with the stream as its only file: the engine carries nothing of a file but content and mode."""
    entry = tarfile.TarInfo(_FILE)
    entry.mode, entry.size = 0o600, files.seek(0, os.SEEK_END)
    head = entry.tobuf(tarfile.PAX_FORMAT)
    padding = -entry.size % tarfile.BLOCKSIZE + 2 * tarfile.BLOCKSIZE

    async def pieces() -> AsyncIterator[bytes]:
        yield head
        files.seek(0)
        while piece := await asyncio.to_thread(files.read, _PIECE):
            yield piece
        yield bytes(padding)

    return Upload(len(head) + entry.size + padding, pieces())


def _unpack(packed: Spool, into: Spool) -> None:
    packed.seek(0)
    try:
        with tarfile.open(fileobj=packed, mode="r:") as tar:
            entry = tar.next()
            content = tar.extractfile(entry) if entry is not None and entry.isreg() else None
            if content is None:
                raise EngineError("a volume with a state of a box's files is empty", op="layers")
            shutil.copyfileobj(cast(io.BufferedIOBase, content), into, _PIECE)
    except tarfile.TarError as error:
        raise EngineError(f"a volume with a state of a box's files cannot be read: {error}", op="layers") from error
