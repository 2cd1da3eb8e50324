"""`RelayedInstance`: the provider contract over a guest that is reached through the streams of a relay process."""

from abc import abstractmethod

from hutch.errors import BoxBroken, Unavailable
from hutch.model.limits import Limits
from hutch.model.spec import EffectiveSpec
from hutch.providers.base import InstanceRecord
from hutch.providers.guest_bundle.counters import GuestCounters
from hutch.providers.guest_bundle.instance import BundledInstance
from hutch.providers.guest_bundle.listener import framed_options
from hutch.providers.guest_client.link import Link
from hutch.providers.stdio_relay.stream import RelayStream

_TIMEOUT = 30.0


class RelayedInstance(BundledInstance):
    """A subclass says how a relay is started (`relay`) and whether the box's machine is alive (`is_alive`)."""

    def __init__(self, record: InstanceRecord, spec: EffectiveSpec, *, options: bytes | None = None) -> None:
        """`options` are for a guest that was just started and waits for them."""
        super().__init__(record, spec, self._reach, GuestCounters())
        self._options = options

    @abstractmethod
    async def relay(self, *, fresh: bool) -> RelayStream:
        """Start a relay in the box and connect to it. Raises BoxBroken if the box is certainly gone."""

    @abstractmethod
    async def is_alive(self) -> bool:
        """Return False only if the box's machine has certainly ended."""

    async def _reach(self) -> Link:
        options, self._options = self._options, None
        stream = await self.relay(fresh=options is not None)
        if options is not None:
            stream.write(framed_options(options))
        try:
            await stream.link.wait_for_hello(_TIMEOUT)
        except (BoxBroken, Unavailable) as error:
            if "no guest at" in stream.stderr or not await self.is_alive():
                raise BoxBroken(f"box {self.record.box_id} is dead: its guest has ended") from error
            raise Unavailable(f"the guest cannot be reached: {stream.stderr.strip() or error.message}") from error
        return stream.link

    async def change_limits(self, limits: Limits) -> tuple[str, ...]:
        unchanged = await super().change_limits(limits)
        self.limits = self.limits.but(memory_mb=limits.memory_mb)
        await (await self.link()).request("watch", memory_bytes=limits.memory_mb << 20, pids=self.limits.pids)
        return tuple(name for name in unchanged if name != "memory_mb")
