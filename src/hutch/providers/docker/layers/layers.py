"""Layers of container boxes: a state is a copy of the box's files, because an engine switches no layers in a live box.

So a checkpoint costs as much as copying the workspace, the home and what was changed in the root; and going back makes
a new container, which takes the place of the old one when it has all files.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from hutch.errors import Conflict
from hutch.model.layers import Change, Way
from hutch.providers.docker.layers import file_states
from hutch.providers.docker.layers.box_files import BoxFiles, Spool, spool
from hutch.providers.docker.layers.file_states import FileState, Merged
from hutch.providers.docker.layers.state_volumes import StateVolumes
from hutch.providers.layers import Frozen, Layers

if TYPE_CHECKING:
    from hutch.providers.base import Instance
    from hutch.providers.docker.instance import ContainerInstance


class LayerParts(NamedTuple):
    """What the layers of one box need of its provider."""

    states: StateVolumes
    files: Callable[[], Awaitable[BoxFiles]]
    trees: Callable[[], Awaitable[list[str]]]
    """The directories that are the box's own besides its root."""
    replace: Callable[[Spool], Awaitable[None]]
    """Puts a new container with these files in the place of the present one."""


class ContainerLayers(Layers):
    """The states of one container box's files."""

    def __init__(self, box: "ContainerInstance", parts: LayerParts) -> None:
        self._box = box
        self._parts = parts

    async def freeze(
        self, keep: tuple[str, ...], *, kill: bool = False, to_fork: bool = False, squash: bool = False
    ) -> Frozen:  # fmt: skip
        if kill:
            await self._box.kill_processes()
        with spool() as files:
            busy = await self._pack(files)
            state = await self._parts.states.store(self._box.record.box_id, files)
        await self.drop((*keep, state))
        return Frozen(state=state, way=Way.COPY if busy else Way.COMMIT)

    async def go_back(self, state: str, keep: tuple[str, ...], *, kill: bool = False) -> None:
        with spool() as files:
            await self._parts.states.load(state, files)
            if kill:
                await self._box.kill_processes()
            await self._check_idle()
            await self._parts.replace(files)
        await self.drop(keep)

    async def compare(self, start: str, end: str, *, text: bool) -> tuple[tuple[Change, ...], bool]:
        with ExitStack() as stack:
            before, after = await self._load(stack, start), await self._load(stack, end)
            paths = await asyncio.to_thread(file_states.differing, before, after)
            shown = paths[: file_states.MAX_CHANGES]
            changes = [file_states.change(path, before.entries.get(path), after.entries.get(path)) for path in shown]
            if text:
                found = await _texts(await asyncio.to_thread(file_states.text_pairs, before, after, shown))
                changes = [each.but(text=found.get(each.path)) for each in changes]
        return tuple(changes), len(shown) < len(paths)

    async def sizes(self, states: Sequence[str]) -> tuple[int, ...]:
        found = []
        for state in states:
            with spool() as files:
                await (self._parts.states.load(state, files) if state else self._pack(files))
                found.append(files.seek(0, os.SEEK_END))
        return tuple(found)

    async def merge(
        self, fork: "Instance", start: str, fork_start: str, fork_end: str, keep: tuple[str, ...]
    ) -> tuple[str, ...]:
        with ExitStack() as stack:
            base, theirs = await self._load(stack, start), await self._load(stack, fork_end)
            ours = await self._load(stack, "")
            merged = await asyncio.to_thread(Merged, base, ours, theirs)
            paths = tuple(f"/{path}" for path in merged.paths)
            if merged.conflicts:
                conflicts = [f"/{path}" for path in merged.conflicts]
                raise Conflict(
                    f"{len(conflicts)} paths were changed in both boxes, beginning with {conflicts[0]}",
                    op="merge", details={"conflicts": conflicts},
                    remedy="change them in one of the boxes so that both agree, then merge again; nothing was merged",
                )  # fmt: skip
            if paths:
                files = stack.enter_context(spool())
                await asyncio.to_thread(merged.write, files)
                await self._check_idle()
                await self._parts.replace(files)
        await self.drop(keep)
        return paths

    async def write_layer(self, state: str, path: str) -> None:
        with ExitStack() as stack:
            await asyncio.to_thread(file_states.write_layer, await self._load(stack, state), path)

    async def drop(self, keep: tuple[str, ...]) -> None:
        await self._parts.states.drop(self._box.record.box_id, keep)

    async def fill(self, state: str) -> None:
        """Give this new box, in which nobody has run anything, the files of a state."""
        with spool() as files:
            await self._parts.states.load(state, files)
            await (await self._parts.files()).unpack(files)

    async def _pack(self, into: Spool) -> bool:
        spec = self._box.spec
        return await (await self._parts.files()).pack(
            await self._parts.trees(), with_root=not spec.read_only_root, most=2 * spec.limits.disk_mb << 20, into=into
        )

    async def _load(self, stack: ExitStack, state: str) -> FileState:
        """A state, or the present one."""
        files = stack.enter_context(spool())
        if state:
            await self._parts.states.load(state, files)
        else:
            await self._pack(files)
        return await asyncio.to_thread(FileState, files)

    async def _check_idle(self) -> None:
        if busy := await (await self._parts.files()).processes():
            raise Conflict(
                f"box {self._box.record.box_id} is working: process {', '.join(map(str, busy[:5]))}",
                details={"busy": [f"process {pid}" for pid in busy], "count": len(busy)},
                remedy="wait for its jobs, end them, or pass kill=True",
            )


async def _texts(pairs: bytes) -> dict[str, str]:
    """Unified diffs by path, of as many as are ready in time."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", file_states.DIFF_PROGRAM,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stdin is not None
    found: dict[str, str] = {}

    async def read(lines: asyncio.StreamReader) -> None:
        data = b""
        while piece := await lines.read(1 << 16):
            *whole, data = (data + piece).split(b"\n")
            found.update(json.loads(line) for line in whole)

    async def write(to: asyncio.StreamWriter) -> None:
        to.write(pairs)
        await to.drain()
        to.close()

    try:
        async with asyncio.timeout(file_states.TEXT_SECONDS):
            await asyncio.gather(read(process.stdout), write(process.stdin))
    except (TimeoutError, ConnectionError):
        pass  # what is missing has no text
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    return found
