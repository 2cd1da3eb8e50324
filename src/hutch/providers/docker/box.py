"""A live container box: the linked instance, with the engine's freezer and limits and the container's counters."""

from collections.abc import Awaitable, Callable
from typing import Any

from hutch.model.limits import Limits
from hutch.model.results import JobInfo, Result
from hutch.model.spec import EffectiveSpec
from hutch.providers.base import Command, InstanceRecord
from hutch.providers.docker import shape
from hutch.providers.docker.engine import Engine
from hutch.providers.docker.facts import Facts
from hutch.providers.linked.channel import Channel
from hutch.providers.linked.instance import LinkedInstance
from hutch.providers.linked.link import Link
from hutch.providers.linked.process import LinkedProcess


class ContainerInstance(LinkedInstance):
    """What `LinkedInstance` leaves to the engine."""

    def __init__(
        self,
        record: InstanceRecord,
        spec: EffectiveSpec,
        engine: Engine,
        connect: Callable[[], Awaitable[Link]],
        deputy: Callable[[str], Awaitable[Link]],
        facts: Facts,
        *,
        updates: bool,
        walled: bool,
    ) -> None:
        super().__init__(record, spec, connect, facts, deputy=deputy)
        self._engine = engine
        self._counters = facts
        self._walled = walled
        self._updates = updates
        """Whether the engine can change the limits of a live container."""

    @property
    def container(self) -> str:
        return str(self.record.data["container"])

    # Counters that only the guest can read are asked for before a command, and after one that failed.

    async def run(self, command: Command) -> Result:
        await self._counters.refresh(await self.link())
        return await super().run(command)

    async def start(self, command: Command) -> LinkedProcess:
        await self._counters.refresh(await self.link())
        return await super().start(command)

    async def result(self, link: Link, channel: Channel, answer: dict[str, Any], seen: Any = None) -> Result:
        if answer.get("exit_code") != 0:
            await self._counters.refresh(link)
        return await super().result(link, channel, answer, seen)

    async def job_info(self, link: Link, answer: dict[str, Any]) -> JobInfo:
        if answer.get("ended") and answer.get("exit_code") != 0:
            await self._counters.refresh(link)
        return await super().job_info(link, answer)

    async def pause(self) -> None:
        await self._engine.pause(self.container)

    async def resume(self) -> None:
        await self._engine.unpause(self.container)

    async def change_limits(self, limits: Limits) -> tuple[str, ...]:
        """What the engine's control groups hold changes at once; disk and open files would need a new container."""
        unchanged = await super().change_limits(limits)
        live = {"cpus", "memory_mb", "pids"} & set(unchanged) if self._updates else set()
        if live:
            wanted = self.limits.but(**{name: getattr(limits, name) for name in live})
            await self._engine.update(self.container, shape.limited(wanted, walled=self._walled))
            self.limits = wanted
        return tuple(name for name in unchanged if name not in live)

    async def close(self) -> None:
        await super().close()
        self._counters.close()
