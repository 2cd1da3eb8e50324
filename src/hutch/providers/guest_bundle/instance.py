"""`BundledInstance`: a box some of whose counters only its guest can read."""

from collections.abc import Awaitable, Callable
from typing import Any

from hutch.model.results import JobInfo, Result
from hutch.model.spec import EffectiveSpec
from hutch.providers.base import Command, InstanceRecord
from hutch.providers.guest_bundle.counters import BoxCounters
from hutch.providers.guest_client.channel import Channel
from hutch.providers.guest_client.instance import GuestInstance
from hutch.providers.guest_client.link import Link
from hutch.providers.guest_client.process import GuestProcess


class BundledInstance(GuestInstance):
    """Refreshes the counters before a command, and after one that failed."""

    def __init__(
        self,
        record: InstanceRecord,
        spec: EffectiveSpec,
        connect: Callable[[], Awaitable[Link]],
        facts: BoxCounters,
        *,
        root_guest: Callable[[str], Awaitable[Link]] | None = None,
    ) -> None:
        super().__init__(record, spec, connect, facts, root_guest=root_guest)
        self._counters = facts

    async def run(self, command: Command) -> Result:
        await self._counters.refresh(await self.link())
        return await super().run(command)

    async def start(self, command: Command) -> GuestProcess:
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

    async def close(self) -> None:
        await super().close()
        self._counters.close()
