"""The box a server runs in: its own, its pipeline's, or that of the conversation that uses it (B10, B33)."""

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
from hutch.mcp.hosting.receipts import Notes
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
"""Files of servers that share a box: `/workspace/.mcp/NAME` (B10)."""
MOUNTED_AT = "/mnt"


class Cellar(Protocol):
    """Of `hutch.api.Volumes`, what a server needs."""

    async def create(self, name: str) -> VolumeInfo: ...

    async def remove(self, name: str) -> None: ...


class Host(Protocol):
    """Of `hutch.api.Hutch`, what a server needs; `hutch serve` gives each owner one of his own."""

    @property
    def config(self) -> Config:
        """Of the process that hosts the servers: it says which of its files they may have."""

    @property
    def volumes(self) -> Cellar: ...

    @property
    def receipts(self) -> Notes: ...

    async def create(self, /, *, key: str = "", **spec: Any) -> Box: ...

    async def boxes(self) -> tuple[BoxInfo, ...]: ...

    async def destroy(self, box_id: str, *, force: bool = False) -> None: ...

    async def status(self) -> Status: ...


@dataclass(frozen=True)
class Room:
    """A box, and where a server's host files are in it."""

    box: Box
    places: projects.Places
    root: CheckedMount | None
    """The project's directory on the host, as policy has allowed it."""
    installing: asyncio.Lock
    """One installation at a time: servers of a pipeline share caches."""


async def check_usable(hutch: Host) -> None:
    """Never on the host (lesson 39): where no box can be made, a server does not run. Disabled and Unavailable tell a
    switch from a fault."""
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


class Boxes:
    """Makes and ends the boxes of one owner's servers."""

    def __init__(self, hutch: Host, settings: McpTable, rights: Rights = UNBOUND) -> None:
        self._hutch = hutch
        self._settings = settings
        self._rights = rights
        self._pipelines: dict[str, _Pipeline] = {}

    @property
    def notes(self) -> Notes:
        return self._hutch.receipts

    @asynccontextmanager
    async def room(
        self, name: str, entry: Entry, project: projects.Project, box: Box | None = None
    ) -> AsyncIterator[Room]:
        """A place for the server, until it is left. `box` is the conversation's, where it shares that one."""
        server = entry.server
        await check_usable(self._hutch)
        with mounts.granted(*entry.roots):
            # Before any box is made, and whichever box it is: a copy shows a file as a mount does.
            sources = await asyncio.to_thread(self._allowed, project)
        root = sources.get(project.root)
        if box is not None:
            yield Room(box, await _copied(box, name, project, sources), root, asyncio.Lock())
        elif server.share is Share.PIPELINE:
            pipeline = self._pipelines.setdefault(server.group, _Pipeline())
            async with self._joined(pipeline, entry) as shared:
                yield Room(shared, await _copied(shared, name, project, sources), root, pipeline.installing)
        else:
            async with self._own(name, entry, project, root) as own:
                yield own

    def _allowed(self, project: projects.Project) -> dict[str, CheckedMount]:
        """The host paths that the server needs, each pinned; Refused if one may not be shown in a box."""
        return {source: self._hutch.config.host_place(source, "MCP server's path") for source in project.sources()}

    @asynccontextmanager
    async def _own(
        self, name: str, entry: Entry, project: projects.Project, root: CheckedMount | None
    ) -> AsyncIterator[Room]:
        server = entry.server
        mode = server.mount
        pairs = {shown.source: f"{MOUNTED_AT}/{shown.name}" for shown in project.data}
        if project.root:
            pairs[project.root] = f"{MOUNTED_AT}/project"
        shown = [Mount(source=source, target=target, mode=mode) for source, target in pairs.items()]
        with mounts.granted(*entry.roots):
            box = await self._make(_volume(name), entry, shown, {LABEL: name})
        try:
            yield Room(box, projects.places(pairs), root, asyncio.Lock())
        finally:
            await _end(self._hutch, box)

    @asynccontextmanager
    async def _joined(self, pipeline: "_Pipeline", entry: Entry) -> AsyncIterator[Box]:
        group = entry.server.group
        async with pipeline.changing:
            if pipeline.box is None or not await _alive(pipeline.box):
                pipeline.box = await self._make(f"mcp-pipeline-{group}", entry, [], {"mcp-pipeline": group})
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
                        await _end(self._hutch, ending)

    async def _make(self, volume: str, entry: Entry, shown: list[Mount], labels: dict[str, str]) -> Box:
        server = entry.server
        with suppress(Conflict):  # it is there from an earlier start: that is what it is for
            await self._hutch.volumes.create(volume)
        kept = [Mount(source=path, target=path, mode=MountMode.RO) for path in self._kept_paths()]
        asked: dict[str, Any] = {
            "profile": server.profile, "workspace": f"volume:{volume}:rw", "mounts": (*shown, *kept),
            "labels": labels, "skills": NO_SKILL, "idle_timeout_sec": 0.0, "image": server.image,
            "network": server.network, "read_only_root": server.read_only_root,
        }  # fmt: skip
        limits = {key: getattr(server, key) for key in ("cpus", "memory_mb", "pids", "disk_mb")}
        asked |= {key: value for key, value in limits.items() if value is not None}
        # Nobody's request goes on here: the first that came began the task in which the server is kept alive.
        with mounts.granted(*self._kept_paths()), bound_by(self._rights_of(entry)):
            return await self._hutch.create(**{key: value for key, value in asked.items() if value is not None})

    def _rights_of(self, entry: Entry) -> Rights:
        if entry.rights is None:
            return self._rights
        return UNBOUND if entry.rights == UNBOUND else both(self._rights, entry.rights)

    def _kept_paths(self) -> tuple[str, ...]:
        """Where packages come from, by the operator's word."""
        extra = (self._settings.npm_cache,) if self._settings.npm_cache else ()
        return tuple(dict.fromkeys((*self._settings.install_paths, *extra)))

    async def forget(self, name: str) -> None:
        """What was installed for a server goes with it."""
        try:
            await self._hutch.volumes.remove(_volume(name))
        except NotFound:  # it was never started
            return
        except HutchError as error:
            log("mcp").warning("volume of a server not removed", server=name, error=error)

    async def sweep(self, names: frozenset[str]) -> None:
        """End what an earlier run of ours has left: its servers are started anew (B37)."""
        for info in await self._hutch.boxes():
            if (labels := info.spec.labels).get(LABEL) not in names and "mcp-pipeline" not in labels:
                continue
            try:
                await self._hutch.destroy(info.id)
            except HutchError as error:  # another live process holds it: it is that one's
                log("mcp").info("box of a server left alone", box=info.id, why=error.message)


@dataclass
class _Pipeline:
    box: Box | None = None
    users: int = 0
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Two servers that start at once make one box, and the last that leaves ends it."""
    installing: asyncio.Lock = field(default_factory=asyncio.Lock)


def _volume(name: str) -> str:
    return f"mcp-{name}"


async def _alive(box: Box) -> bool:
    try:
        return (await box.exec(["true"], timeout=10)).ok
    except HutchError:
        return False


async def _end(hutch: Host, box: Box) -> None:
    """Also when we are being cancelled: a box that nobody ends costs memory until its clocks do. One that somebody has
    taken over is his."""
    ending = asyncio.ensure_future(hutch.destroy(box.id))
    try:
        await asyncio.shield(ending)
    except asyncio.CancelledError:
        await asyncio.wait({ending})
        raise
    except HutchError as error:
        log("mcp").warning("box of a server not ended", box=box.id, error=error)


async def _copied(box: Box, name: str, project: projects.Project, sources: dict[str, CheckedMount]) -> projects.Places:
    """Host files as copies, in a box that others use too: it cannot be given mounts any more."""
    pairs: dict[str, str] = {}
    if project.root:
        pairs[project.root] = f"{SHARED_AT}/{name}"
    for shown in project.data:
        pairs[shown.source] = f"{SHARED_AT}/{name}.data/{shown.name}"
    for source, target in pairs.items():
        await project_files.copy_in(box, sources[source], target)
    return projects.places(pairs)
