"""A live container box: the guest instance with the engine's freezer, its limits and the container's counters."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hutch.errors import HutchError, Unsupported
from hutch.model.limits import Limits
from hutch.model.results import Result, Usage
from hutch.model.spec import EffectiveSpec
from hutch.providers.base import Command, InstanceRecord
from hutch.providers.docker import container_spec
from hutch.providers.docker.disk_watchdog import DiskWatchdog
from hutch.providers.docker.engine.api import Engine
from hutch.providers.guest_bundle.counters import BoxCounters
from hutch.providers.guest_bundle.instance import BundledInstance
from hutch.providers.guest_client.disk_overrun import Overrun, full, refusal
from hutch.providers.guest_client.link import Link
from hutch.providers.guest_client.process import GuestProcess
from hutch.providers.guest_client.verdicts import Counters

if TYPE_CHECKING:
    from hutch.providers.docker.layers.layers import ContainerLayers, LayerParts


class Traits(NamedTuple):
    """The traits of a container that depend on the engine and its runtime."""

    updates: bool
    """Whether the limits of a live container can be changed."""
    walled: bool
    """Whether it runs under a kernel of its own, so that the host's counters see only the sandbox."""
    watched: bool
    """Whether its guest's watchdog enforces memory and process limits."""
    pty: bool
    blind: bool
    """Whether its first process is invisible to us, so that the engine is asked when it ends."""


class Reached(NamedTuple):
    """A container, and how it is reached."""

    record: InstanceRecord
    connect: Callable[[], Awaitable[Link]]
    root_guest: Callable[[str], Awaitable[Link]]
    facts: BoxCounters
    traits: Traits


class _CountersWithDisk:
    """The container's counters, with those of its disk watchdog."""

    def __init__(self, facts: BoxCounters, overrun: Overrun) -> None:
        self._facts = facts
        self._overrun = overrun

    def read(self) -> Counters:
        return msgspec.structs.replace(self._facts.read(), disk_ends=self._overrun.ends, excess=self._overrun.reason)


class ContainerInstance(BundledInstance):
    """A box in a container. It does what `GuestInstance` leaves to the engine."""

    def __init__(
        self,
        reached: Reached,
        spec: EffectiveSpec,
        engine: Engine,
        layer_parts: "Callable[[ContainerInstance], LayerParts]",
        *,
        lived: bool,
    ) -> None:
        """`lived` says that something may have run in it."""
        record, traits, facts = reached.record, reached.traits, reached.facts
        super().__init__(record, spec, reached.connect, facts, root_guest=reached.root_guest)
        self._engine = engine
        self._traits = traits
        self._layer_parts = layer_parts
        self._clocks: dict[str, float | None] = {}
        self._end = asyncio.create_task(self._await_end()) if traits.blind else None
        kept = record.data.get("volumes")
        self._disk = (
            DiskWatchdog(
                engine,
                self.container,
                kept if isinstance(kept, list) else [],
                spec.limits.disk_mb << 20,
                self._still,
                lived=lived,
            )
            if container_spec.is_persistent(spec) or not spec.read_only_root
            else None
        )
        if self._disk is not None:
            self._facts = _CountersWithDisk(facts, self._disk.overrun)

    @property
    def container(self) -> str:
        return str(self.record.data["container"])

    @cached_property
    def layers(self) -> "ContainerLayers":
        from hutch.providers.docker.layers.layers import ContainerLayers  # few boxes need it

        return ContainerLayers(self, self._layer_parts(self))

    async def move_to(self, reached: Reached) -> None:
        """Go on in another container, which has taken the place of the one that this was."""
        for link in tuple(self._links.values()):
            link.close()
        self._links.clear()
        self._accounts.clear()
        self.record, self._connect, self._root_guest = reached.record, reached.connect, reached.root_guest
        self._counters.close()
        self._counters = self._facts = reached.facts
        self._traits = reached.traits
        if self._end is not None:
            self._end.cancel()
            self._end = asyncio.create_task(self._await_end())
        if self._disk is not None:
            kept = reached.record.data.get("volumes")
            self._disk.follow(kept if isinstance(kept, list) else [])
            self._facts = _CountersWithDisk(reached.facts, self._disk.overrun)
        await self.link()
        if self._clocks:
            await super().set_clocks(**self._clocks)

    async def set_clocks(self, *, orphan_grace_sec: float | None = None, ttl_sec: float | None = None) -> None:
        await super().set_clocks(orphan_grace_sec=orphan_grace_sec, ttl_sec=ttl_sec)
        given = {"orphan_grace_sec": orphan_grace_sec, "ttl_sec": ttl_sec}
        self._clocks |= {name: value for name, value in given.items() if value is not None}

    async def kill_processes(self) -> None:
        """End all processes but the guests, and wait for their end."""
        await self.link()
        for link in tuple(self._links.values()):
            if link.usable:
                await link.request("kill_all")
                await link.request("make_room")

    async def run(self, command: Command) -> Result:
        if self._disk is not None and (excess := await self._disk.over_limit()):
            return Result(job_id="", exit_code=None, verdict=refusal(excess))
        return await super().run(command)

    async def start(self, command: Command) -> GuestProcess:
        if self._disk is not None and (excess := await self._disk.over_limit()):
            raise full(excess, "start")
        if command.pty and not self._traits.pty:
            raise Unsupported("this runtime gives a program no controlling terminal", op="start")
        return await super().start(command)

    async def pause(self) -> None:
        await self._engine.pause(self.container)

    async def resume(self) -> None:
        await self._engine.unpause(self.container)

    async def change_limits(self, limits: Limits) -> tuple[str, ...]:
        """Change the limits of the control groups at once; disk and open files would need a new container."""
        unchanged = await super().change_limits(limits)
        if self._traits.watched:
            return await self._change_watched(limits, unchanged)
        live = {"cpus", "memory_mb", "pids"} & set(unchanged) if self._traits.updates else set()
        if live:
            wanted = self.limits.but(**{name: getattr(limits, name) for name in live})
            await self._engine.update(self.container, container_spec.limited(wanted, walled=self._traits.walled))
            self.limits = wanted
        return tuple(name for name in unchanged if name not in live)

    async def _change_watched(self, limits: Limits, unchanged: tuple[str, ...]) -> tuple[str, ...]:
        """Change the watchdog's limits. The sandbox keeps its own limit, so memory can only shrink."""
        live = {"pids"} if limits.memory_mb > self.limits.memory_mb else {"pids", "memory_mb"}
        self.limits = self.limits.but(**{name: getattr(limits, name) for name in live})
        await (await self.link()).request("watch", **container_spec.watched(self.limits))
        return tuple(name for name in unchanged if name not in live)

    async def usage(self) -> Usage:
        counted = await super().usage()
        if not self._traits.walled:
            return counted
        # The sandbox counts its own time; only the engine knows what the machine spent.
        spent = ((await self._engine.stats(self.container)).get("cpu_stats") or {}).get("cpu_usage") or {}
        total, system = spent.get("total_usage") or 0, spent.get("usage_in_kernelmode") or 0
        return counted.but(cpu_user_sec=(total - system) / 1e9, cpu_system_sec=system / 1e9)

    async def _still(self, overrun: Overrun) -> None:
        """End every process of the box but its guests."""
        await self.link()
        for link in tuple(self._links.values()):
            if link.usable:
                # This is counted at once, so that a command that was sent before knows that it ended for this.
                overrun.ends += 1
                await link.request("kill_all")
                await link.request("make_room")

    async def _await_end(self) -> None:
        """Close the links at the container's end, because a stream through the engine may outlive it."""
        try:
            await self._engine.wait(self.container)
        except HutchError:
            return  # the engine is away, and the next caller who uses the box gets that error
        for link in tuple(self._links.values()):
            link.close()

    async def close(self) -> None:
        if self._end is not None:
            self._end.cancel()
        if self._disk is not None:
            self._disk.close()
        await super().close()
