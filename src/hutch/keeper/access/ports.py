"""Connections into boxes: bounded for each box, counted, and kept from idling; and events when a port opens or closes.

Whoever connects needs no lease: a visitor of a preview belongs to no session. Callers that act for a session check its
lease first (`BoxHandle.connect`).
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol, Self

from hutch.config.server import ServerTable
from hutch.errors import BoxBroken, HutchError, PortClosed, QuotaExceeded, Timeout, Unavailable, Unsupported
from hutch.keeper.access.callers import keeper_context
from hutch.keeper.boxes.health import Health
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.pause import Pauser
from hutch.keeper.boxes.states import States
from hutch.logs import log
from hutch.model.boxes import Event, PortInfo, Preview, State
from hutch.model.ids import BoxId
from hutch.providers.base import Instance
from hutch.providers.handles import PortStream

RETRY_SECONDS = 0.1
"""Interval between attempts to reach a port that is still closed."""


class PreviewIssuer(Protocol):
    """Makes addresses for ports; a server that serves them is one."""

    async def issue(self, live: Live, port: int, *, public: bool = False, ttl_sec: float = 0.0) -> Preview: ...

    async def of_box(self, box_id: BoxId) -> tuple[Preview, ...]: ...

    async def revoke(self, box_id: BoxId, preview_id: str) -> None:
        """Raises: NotFound."""


class BoxStream:
    """A connection to a port of a box. Close it, or leave its `async with`."""

    def __init__(self, stream: PortStream, live: Live, ports: "Ports") -> None:
        self._stream = stream
        self._live = live
        self._ports = ports
        self._open = True
        live.connections += 1
        ports.open += 1

    async def receive(self) -> bytes:
        """Return the next bytes; none when the program in the box has ended its side."""
        data = await self._stream.receive()
        self._ports.bytes_out += len(data)
        return data

    async def send(self, data: bytes | memoryview) -> None:
        """Send bytes, and wait until the box accepts more."""
        self._ports.bytes_in += len(data)
        await self._stream.send(data)

    async def end(self) -> None:
        """End this side; the program may still send."""
        self._stream.end()

    def is_quiet(self, live: Live) -> bool:
        """Whether this leads to that box, and nothing has come on it that was not received, not even its end."""
        return self._live is live and self._stream.is_quiet()

    async def close(self) -> None:
        self.close_now()

    def close_now(self) -> None:
        """Close both sides, from code that cannot wait."""
        if self._open:
            self._open = False
            self._stream.close()
            self._live.connections -= 1
            self._live.last_used = time.monotonic()
            self._ports.open -= 1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Ports:
    """The ports of all boxes of one keeper."""

    def __init__(
        self, states: States, health: Health, pauser: Pauser, check_owned: Callable[[Live], None],
        table: ServerTable,
    ) -> None:  # fmt: skip
        self._states = states
        self._health = health
        self._pauser = pauser
        self._check_owned = check_owned
        self._limit = table.max_connections_per_box
        """The most connections of one box."""
        self._watches: dict[str, asyncio.Task[None]] = {}
        self.open = 0
        self.opened = 0
        self.bytes_in = 0
        self.bytes_out = 0

    async def connect(self, live: Live, port: int, *, wait: float = 0.0) -> BoxStream:
        """Connect to a port, and wake the box if it is paused. `wait` is how long a closed port may take to open.

        Raises:
            PortClosed: Nothing listens there.
            QuotaExceeded: The box has as many connections as it may have.
        """
        deadline = time.monotonic() + wait
        while True:
            try:
                return await self._connect(live, port)
            except PortClosed:
                if time.monotonic() + RETRY_SECONDS > deadline:
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    async def _connect(self, live: Live, port: int) -> BoxStream:
        if live.connections >= self._limit:
            raise QuotaExceeded(
                f"box {live.record.id} has {live.connections} connections to its ports, and none has more",
                op="connect", retry_after=1.0, details={"connections": self._limit}, remedy="close some of them",
            )  # fmt: skip
        instance = await self._begin(live)
        try:
            stream = await instance.connect(port)
        except HutchError as error:
            await self._failed(live, error)
            raise
        finally:
            live.unpin()
        self.opened += 1
        return BoxStream(stream, live, self)

    async def listening(self, live: Live, *, wait: float = 0.0) -> tuple[PortInfo, ...]:
        """Return the ports on which programs listen, after at most `wait` seconds for those that the spec names.

        Raises:
            Timeout: A port of the spec is still closed.
        """
        deadline = time.monotonic() + wait
        self.watch(live)
        while True:
            found = await self._listening(live)
            closed = sorted(set(live.record.spec.ports) - {each.port for each in found}) if wait else []
            if not closed:
                return found
            if time.monotonic() + RETRY_SECONDS > deadline:
                names = ", ".join(map(str, closed))
                raise Timeout(
                    f"nothing listens on port {names} after {wait:g} s", op="ports", details={"ports": closed}
                )
            await asyncio.sleep(RETRY_SECONDS)

    async def _listening(self, live: Live) -> tuple[PortInfo, ...]:
        instance = await self._begin(live)
        try:
            return await instance.ports()
        finally:
            live.unpin()

    async def _begin(self, live: Live) -> Instance:
        """Pin the box and wake it if it is paused. Every `_begin` needs an `unpin`."""
        live.check_not_gone()
        self._check_owned(live)
        if live.record.state is State.UNKNOWN:
            await self._health.recover(live)
        live.pin(live.record.epoch)
        if live.record.state is State.PAUSED:
            try:
                await self._pauser.resume(live, "a connection to one of its ports")
            except BaseException:
                live.unpin()
                raise
        return live.running

    async def _failed(self, live: Live, error: HutchError) -> None:
        if isinstance(error, BoxBroken):
            await self._health.mark_broken(live, error.message)
        elif isinstance(error, Unavailable):
            await self._health.check(live)

    # --- events -----------------------------------------------------------------------------------------------

    def watch(self, live: Live) -> None:
        """Report from now on which ports of the box open and close. Boxes that nobody asks about are not polled."""
        if live.record.id not in self._watches and live.instance is not None:
            task = asyncio.create_task(self._report(live, live.instance), context=keeper_context())
            self._watches[live.record.id] = task

    async def _report(self, live: Live, instance: Instance) -> None:
        known: dict[int, PortInfo] | None = None
        try:
            async for found in instance.watch_ports():
                ports = {each.port: each for each in found}
                for port in sorted(ports.keys() | (known or {}).keys()):
                    if port not in ports:
                        await self._announce(live, old=port, reason=f"port {port} closed")
                    elif port not in (known or {}):
                        by = f" by {ports[port].process}" if ports[port].process else ""
                        await self._announce(live, new=port, reason=f"port {port} opened{by}")
                known = ports
        except (Unsupported, Unavailable, BoxBroken, Timeout):
            return  # The connection is gone. Whoever asks for the ports next begins a new watch.
        except HutchError as error:
            log("ports").warning("watch ended", box=live.record.id, error=error)
        finally:
            del self._watches[live.record.id]

    async def _announce(self, live: Live, *, old: int = 0, new: int = 0, reason: str) -> None:
        await self._states.announce(
            Event(
                seq=0, at=time.time(), box_id=live.record.id, owner=live.record.owner, kind="port",
                old=str(old or ""), new=str(new or ""), reason=reason,
            )
        )  # fmt: skip

    def forget(self, live: Live) -> None:
        """Stop watching a box that is gone."""
        if (task := self._watches.get(live.record.id)) is not None:
            task.cancel()

    async def close(self) -> None:
        """Stop every watch, because the keeper ends."""
        tasks = tuple(self._watches.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
