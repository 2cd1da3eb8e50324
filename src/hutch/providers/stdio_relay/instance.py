"""`RelayedInstance`: the provider contract over a guest that is reached by the streams of a process."""

from abc import abstractmethod

from hutch.errors import BoxBroken, Unavailable
from hutch.model.limits import Limits
from hutch.model.spec import EffectiveSpec
from hutch.providers.base import InstanceRecord
from hutch.providers.guest_bundle.counters import AskedFacts
from hutch.providers.guest_bundle.instance import CountedInstance
from hutch.providers.guest_bundle.listener import packed
from hutch.providers.guest_client.link import Link
from hutch.providers.stdio_relay.stream import RelayStream

_PATIENCE = 30.0


class RelayedInstance(CountedInstance):
    """An engine says how a relay is started (`relay`) and whether the box's machine lives (`lives`)."""

    def __init__(self, record: InstanceRecord, spec: EffectiveSpec, *, told: bytes | None = None) -> None:
        """`told` are the first orders of a guest that was just started."""
        super().__init__(record, spec, self._reach, AskedFacts())
        self._first = told

    @abstractmethod
    async def relay(self, *, fresh: bool) -> RelayStream:
        """A relay in the box, started and connected. BoxBroken if the box is certainly gone."""

    @abstractmethod
    async def lives(self) -> bool:
        """False only if the box's machine has certainly ended."""

    async def _reach(self) -> Link:
        orders, self._first = self._first, None
        stream = await self.relay(fresh=orders is not None)
        if orders is not None:
            stream.write(packed(orders))
        try:
            await stream.link.greeted(_PATIENCE)
        except (BoxBroken, Unavailable) as error:
            if "no guest at" in stream.complaint or not await self.lives():
                raise BoxBroken(f"box {self.record.box_id} is dead: its guest has ended") from error
            raise Unavailable(f"the guest cannot be reached: {stream.complaint.strip() or error.message}") from error
        return stream.link

    async def change_limits(self, limits: Limits) -> tuple[str, ...]:
        unchanged = await super().change_limits(limits)
        self.limits = self.limits.but(memory_mb=limits.memory_mb)
        await (await self.link()).request("watch", memory_bytes=limits.memory_mb << 20, pids=self.limits.pids)
        return tuple(name for name in unchanged if name != "memory_mb")
