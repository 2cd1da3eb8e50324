"""The box in which a server runs: its own, its pipeline's, or that of the conversation that uses it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from hutch.api import Box
from hutch.config import Config
from hutch.config.mcp import McpTable
from hutch.errors import Conflict, Disabled, HutchError, NotFound, Unavailable
from hutch.logs import log
from hutch.mcp.hosting import project_files, projects
from hutch.mcp.hosting.receipts import ReceiptWriter
from hutch.mcp.hosting.registry import Entry
from hutch.model.boxes import BoxInfo, VolumeInfo
from hutch.model.mcp import Share
from hutch.model.skills import NO_SKILL
from hutch.model.spec import CheckedMount, Mount, MountMode
from hutch.model.status import Status
from hutch.policy import mounts
from hutch.policy.rights import UNBOUND, Rights, both, bound_by

LABEL = "mcp-server"
SHARED_AT = "/workspace/.mcp"
"""Directory for the files of servers that share a box: `/workspace/.mcp/NAME`."""
MOUNTED_AT = "/mnt"


class VolumeStore(Protocol):
    """The part of `hutch.api.Volumes` that hosting needs."""

    async def create(self, name: str) -> VolumeInfo: ...

    async def remove(self, name: str) -> None: ...


class Host(Protocol):
    """The part of `hutch.api.Hutch` that hosting needs. `hutch serve` has one for each owner."""

    @property
    def config(self) -> Config:
        """Configuration of the hosting process, which decides which host files the servers may use."""

    @property
    def volumes(self) -> VolumeStore: ...

    @property
    def receipts(self) -> ReceiptWriter: ...

    async def create(self, /, *, key: str = "", **spec: Any) -> Box: ...

    async def boxes(self) -> tuple[BoxInfo, ...]: ...

    async def destroy(self, box_id: str, *, force: bool = False) -> None: ...

    async def status(self) -> Status: ...


@dataclass(frozen=True)
class ServerBox:
    """A box with the paths of a server's host files in it."""

    box: Box
    paths: projects.PathMap
    root: CheckedMount | None
    """The project's directory on the host, after the policy check."""
    installing: asyncio.Lock
    """Allows one installation at a time, because servers of a pipeline share caches."""


async def check_usable(hutch: Host) -> None:
    """Raise Disabled or Unavailable if no box can be created: a server never runs on the host itself."""
    status = await hutch.status()
    if not status.enabled:
        raise Disabled(
            f"MCP servers run in boxes, and boxes are switched off: {status.reason}",
            remedy=status.remedy or "set enabled = true in hutch.toml",
        )
    if not status.available:
        raise Unavailable(
            f"MCP servers run in boxes, and none can be made here: {status.reason}",
            retryable=False,
            remedy=status.remedy or "hutch doctor",
        )


class ServerBoxes:
    """Creates and destroys the boxes of one owner's servers."""

    def __init__(self, hutch: Host, settings: McpTable, rights: Rights = UNBOUND) -> None:
        self._hutch = hutch
        self._settings = settings
        self._rights = rights
        self._pipelines: dict[str, _Pipeline] = {}

    @property
    def receipts(self) -> ReceiptWriter:
        return self._hutch.receipts

    @asynccontextmanager
    async def open(
        self, name: str, entry: Entry, project: projects.Project, box: Box | None = None
    ) -> AsyncIterator[ServerBox]:
        """Open the box for a server. `box` is the conversation's, if the server shares that one."""
        server = entry.server
        await check_usable(self._hutch)
        with mounts.granted(*entry.roots):
            # Checked before any box is created and for every kind of box: a copy reveals a file as a mount does.
            sources = await asyncio.to_thread(self._checked_sources, project)
        root = sources.get(project.root)
        if box is not None:
            yield ServerBox(box, await _copy_into(box, name, project, sources), root, asyncio.Lock())
        elif server.share is Share.PIPELINE:
            pipeline = self._pipelines.setdefault(server.group, _Pipeline())
            async with self._pipeline_box(pipeline, entry) as shared:
                yield ServerBox(shared, await _copy_into(shared, name, project, sources), root, pipeline.installing)
        else:
            async with self._own_box(name, entry, project, root) as own:
                yield own

    def _checked_sources(self, project: projects.Project) -> dict[str, CheckedMount]:
        """Return the checked host paths that the server needs, or raise Refused if one may not be shown in a box."""
        return {source: self._hutch.config.host_place(source, "MCP server's path") for source in project.sources()}

    @asynccontextmanager
    async def _own_box(
        self, name: str, entry: Entry, project: projects.Project, root: CheckedMount | None
    ) -> AsyncIterator[ServerBox]:
        server = entry.server
        mode = server.mount
        pairs = {shown.source: f"{MOUNTED_AT}/{shown.name}" for shown in project.data}
        if project.root:
            pairs[project.root] = f"{MOUNTED_AT}/project"
        shown = [Mount(source=source, target=target, mode=mode) for source, target in pairs.items()]
        with mounts.granted(*entry.roots):
            box = await self._create(_volume(name), entry, shown, {LABEL: name})
        try:
            yield ServerBox(box, projects.path_map(pairs), root, asyncio.Lock())
        finally:
            await _destroy(self._hutch, box)

    @asynccontextmanager
    async def _pipeline_box(self, pipeline: "_Pipeline", entry: Entry) -> AsyncIterator[Box]:
        group = entry.server.group
        async with pipeline.changing:
            if pipeline.box is None or not await _is_alive(pipeline.box):
                pipeline.box = await self._create(f"mcp-pipeline-{group}", entry, [], {"mcp-pipeline": group})
            box = pipeline.box
            pipeline.users += 1
        try:
            yield box
        finally:
            pipeline.users -= 1
            if not pipeline.users:
                async with pipeline.changing:
                    if not pipeline.users and pipeline.box is not None:
                        ending, pipeline.box = pipeline.box, None
                        await _destroy(self._hutch, ending)

    async def _create(self, volume: str, entry: Entry, shown: list[Mount], labels: dict[str, str]) -> Box:
        server = entry.server
        with suppress(Conflict):  # It exists from an earlier start, whose packages it keeps.
            await self._hutch.volumes.create(volume)
        kept = [Mount(source=path, target=path, mode=MountMode.RO) for path in self._package_paths()]
        asked: dict[str, Any] = {
            "profile": server.profile, "workspace": f"volume:{volume}:rw", "mounts": (*shown, *kept),
            "labels": labels, "skills": NO_SKILL, "idle_timeout_sec": 0.0, "image": server.image,
            "network": server.network, "read_only_root": server.read_only_root,
        }  # fmt: skip
        limits = {key: getattr(server, key) for key in ("cpus", "memory_mb", "pids", "disk_mb")}
        asked |= {key: value for key, value in limits.items() if value is not None}
        # This runs in the task of the server and not in a request, so the rights are set explicitly.
        with mounts.granted(*self._package_paths()), bound_by(self._rights_of(entry)):
            return await self._hutch.create(**{key: value for key, value in asked.items() if value is not None})

    def _rights_of(self, entry: Entry) -> Rights:
        if entry.rights is None:
            return self._rights
        return UNBOUND if entry.rights == UNBOUND else both(self._rights, entry.rights)

    def _package_paths(self) -> tuple[str, ...]:
        """Return the package directories that the operator configured."""
        extra = (self._settings.npm_cache,) if self._settings.npm_cache else ()
        return tuple(dict.fromkeys((*self._settings.install_paths, *extra)))

    async def forget(self, name: str) -> None:
        """Remove the volume with the packages of a server."""
        try:
            await self._hutch.volumes.remove(_volume(name))
        except NotFound:  # The server was never started.
            return
        except HutchError as error:
            log("mcp").warning("volume of a server not removed", server=name, error=error)

    async def sweep(self, names: frozenset[str]) -> None:
        """Destroy boxes that an earlier process left behind. Their servers are started again."""
        for info in await self._hutch.boxes():
            if (labels := info.spec.labels).get(LABEL) not in names and "mcp-pipeline" not in labels:
                continue
            try:
                await self._hutch.destroy(info.id)
            except HutchError as error:  # Another live process holds the box and keeps it.
                log("mcp").info("box of a server left alone", box=info.id, why=error.message)


@dataclass
class _Pipeline:
    box: Box | None = None
    users: int = 0
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Guards `box`: concurrent starts create one box, and the last server that leaves destroys it."""
    installing: asyncio.Lock = field(default_factory=asyncio.Lock)


def _volume(name: str) -> str:
    return f"mcp-{name}"


async def _is_alive(box: Box) -> bool:
    try:
        return (await box.exec(["true"], timeout=10)).ok
    except HutchError:
        return False


async def _destroy(hutch: Host, box: Box) -> None:
    """Destroy the box even during cancellation, since it would cost memory until its timeouts. A box that another
    session has taken over is left alone."""
    ending = asyncio.ensure_future(hutch.destroy(box.id))
    try:
        await asyncio.shield(ending)
    except asyncio.CancelledError:
        await asyncio.wait({ending})
        raise
    except HutchError as error:
        log("mcp").warning("box of a server not ended", box=box.id, error=error)


async def _copy_into(
    box: Box, name: str, project: projects.Project, sources: dict[str, CheckedMount]
) -> projects.PathMap:
    """Copy host files into a shared box, which cannot get new mounts."""
    pairs: dict[str, str] = {}
    if project.root:
        pairs[project.root] = f"{SHARED_AT}/{name}"
    for shown in project.data:
        pairs[shown.source] = f"{SHARED_AT}/{name}.data/{shown.name}"
    for source, target in pairs.items():
        await project_files.copy_in(box, sources[source], target)
    return projects.path_map(pairs)
