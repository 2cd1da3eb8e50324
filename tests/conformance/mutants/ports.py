"""Mutants whose ports are not what they are in the box."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from hutch.errors import HutchError
from hutch.model.boxes import PortInfo
from hutch.providers.handles import PortStream
from tests.conformance.mutants.mutant import Mutant, MutantInstance


class _Stream(PortStream):
    """A connection; what a mutant does not override is the native one."""

    def __init__(self, inner: PortStream) -> None:
        self.inner = inner

    async def receive(self) -> bytes:
        return await self.inner.receive()

    async def send(self, data: bytes | memoryview) -> None:
        await self.inner.send(data)

    def end(self) -> None:
        self.inner.end()

    def close(self) -> None:
        self.inner.close()


class _Lossy(_Stream):
    async def receive(self) -> bytes:
        return (await self.inner.receive())[:4096]


class LosesBytes(Mutant):
    kills = ("ports.both_ways",)

    class Box(MutantInstance):
        async def connect(self, port: int) -> PortStream:
            return _Lossy(await self.inner.connect(port))


class _Queued(_Stream):
    lock: asyncio.Lock

    async def send(self, data: bytes | memoryview) -> None:
        async with self.lock:
            await self.inner.send(data)


class SendsOneAfterTheOther(Mutant):
    """One connection that nobody reads stops all others."""

    kills = ("ports.several",)
    patience = 2.0

    class Box(MutantInstance):
        async def connect(self, port: int) -> PortStream:
            stream = _Queued(await self.inner.connect(port))
            stream.lock = self.__dict__.setdefault("lock", asyncio.Lock())
            return stream


class _Nothing(PortStream):
    async def receive(self) -> bytes:
        return b""

    async def send(self, data: bytes | memoryview) -> None:
        return

    def end(self) -> None:
        return

    def close(self) -> None:
        return


class OpensClosedPorts(Mutant):
    kills = ("ports.closed",)

    class Box(MutantInstance):
        async def connect(self, port: int) -> PortStream:
            try:
                return await self.inner.connect(port)
            except HutchError:
                return _Nothing()


class _Endless(_Stream):
    async def receive(self) -> bytes:
        try:
            data = await self.inner.receive()
        except HutchError:
            data = b""
        if not data:
            await asyncio.Event().wait()
        return data


class HidesTheEnd(Mutant):
    kills = ("ports.cut",)
    patience = 2.0

    class Box(MutantInstance):
        async def connect(self, port: int) -> PortStream:
            return _Endless(await self.inner.connect(port))


class ListsNothing(Mutant):
    kills = ("ports.listed",)

    class Box(MutantInstance):
        async def ports(self) -> tuple[PortInfo, ...]:
            return ()


class LooksOnce(Mutant):
    kills = ("ports.watched",)
    patience = 2.0

    class Box(MutantInstance):
        def watch_ports(self) -> Any:
            return self._first()

        async def _first(self) -> AsyncIterator[tuple[PortInfo, ...]]:
            yield await self.inner.ports()
            await asyncio.Event().wait()
