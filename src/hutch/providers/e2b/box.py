"""`E2BInstance`: a sandbox with our guest inside, kept alive by pushing its end away while we hold on to it."""

import asyncio
import time
from typing import Any

from hutch.errors import BoxBroken, HutchError, NotFound, Unavailable
from hutch.logs import log
from hutch.model.limits import Limits
from hutch.model.spec import EffectiveSpec
from hutch.providers.base import InstanceRecord
from hutch.providers.e2b.sdk import spoken
from hutch.providers.launched.box import WatchedFacts
from hutch.providers.linked.channel import Channel
from hutch.providers.linked.instance import LinkedInstance
from hutch.providers.linked.link import Link
from hutch.providers.planted.door import packed
from hutch.providers.planted.packing import Plant
from hutch.providers.relayed import sowing
from hutch.providers.relayed.stream import RelayStream

_PATIENCE = 30.0
_AFTER = 5
"""Seconds from the end of a guest to the end of its sandbox."""


class E2BInstance(LinkedInstance):
    """`window`: how far ahead the sandbox's own end is kept (S4, lesson 13)."""

    def __init__(
        self,
        record: InstanceRecord,
        spec: EffectiveSpec,
        sandbox: Any,
        plant: Plant,
        *,
        window: int,
        ends_at: float,
        told: bytes | None = None,
    ) -> None:
        self._counters = WatchedFacts()
        super().__init__(record, spec, self._reach, self._counters)
        self.sandbox = sandbox
        self._plant = plant
        self._window = window
        self._ends_at = ends_at
        """Unix time of the ttl's end; 0: none."""
        self._first = told
        self._keeping = asyncio.create_task(self._keep())

    async def _reach(self) -> Link:
        orders, self._first = self._first, None
        stream = await self._relay(fresh=orders is not None)
        if orders is not None:
            stream.write(packed(orders))
        try:
            await stream.link.greeted(_PATIENCE)
        except (BoxBroken, Unavailable) as error:
            if "no guest at" in stream.complaint or not await self._lives():
                raise BoxBroken(f"box {self.record.box_id} is dead: its guest has ended") from error
            raise Unavailable(f"the guest cannot be reached: {stream.complaint.strip() or error.message}") from error
        return stream.link

    async def _relay(self, *, fresh: bool) -> RelayStream:
        command = sowing.relay(self._plant, fresh=fresh)
        handle: Any = None

        async def send(data: bytes) -> None:
            async with spoken("connect"):
                await handle.send_stdin(data)

        async def end() -> None:
            async with spoken("connect"):
                await handle.kill()

        stream = RelayStream(send, end)
        try:
            async with spoken("connect"):
                handle = await self.sandbox.commands.run(
                    command, background=True, user="root", stdin=True, timeout=0, retain_output=False,
                    on_stdout=stream.heard, on_stderr=stream.complained,
                )  # fmt: skip
        except NotFound as error:
            stream.ended(error)
            raise BoxBroken(f"box {self.record.box_id} is gone: {error.message}") from error
        except HutchError as error:
            stream.ended(error)
            raise
        self._watch(stream, handle)
        return stream

    def _watch(self, stream: RelayStream, handle: Any) -> None:
        async def wait() -> None:
            try:
                await handle.wait()
            except Exception as error:  # however the relay ended, the link is over; the link's users are told
                stream.ended(error)
            else:
                stream.ended()

        stream.watching = asyncio.create_task(wait())

    async def _lives(self) -> bool:
        try:
            async with spoken("connect"):
                return bool(await self.sandbox.is_running())
        except HutchError:
            return True  # nobody can say

    # --- its clock -------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """A sandbox ends by the engine's clock unless somebody moves it; its ttl is never moved."""
        while True:
            await asyncio.sleep(self._window / 3)
            try:
                async with spoken("clock"):
                    await self.sandbox.set_timeout(self.left())
            except NotFound:
                return
            except HutchError as error:
                log("e2b").warning("the end of a sandbox was not moved", box=self.record.box_id, error=error.message)

    def left(self) -> int:
        """Seconds to which the sandbox's end may be moved. Its guest ends a box at its ttl; the rest goes soon after."""
        if not self._ends_at:
            return self._window
        return max(1, min(self._window, int(self._ends_at - time.time()) + _AFTER))

    # --- what only the engine can do -------------------------------------------------------------------------

    async def run(self, command: Any) -> Any:
        await self._counters.refresh(await self.link())
        return await super().run(command)

    async def start(self, command: Any) -> Any:
        await self._counters.refresh(await self.link())
        return await super().start(command)

    async def result(self, link: Link, channel: Channel, answer: dict[str, Any], seen: Any = None) -> Any:
        if answer.get("exit_code") != 0:
            await self._counters.refresh(link)
        return await super().result(link, channel, answer, seen)

    async def pause(self) -> None:
        """The whole sandbox is put aside, memory and all."""
        async with spoken("pause"):
            await self.sandbox.pause()
        for link in tuple(self._links.values()):
            link.close()

    async def resume(self) -> None:
        async with spoken("resume"):
            await self.sandbox.connect(timeout=self._window)

    async def change_limits(self, limits: Limits) -> tuple[str, ...]:
        unchanged = await super().change_limits(limits)
        self.limits = self.limits.but(memory_mb=limits.memory_mb)
        await (await self.link()).request("watch", memory_bytes=limits.memory_mb << 20, pids=sowing.UNHELD)
        return tuple(name for name in unchanged if name != "memory_mb")

    async def close(self) -> None:
        self._keeping.cancel()
        await super().close()
