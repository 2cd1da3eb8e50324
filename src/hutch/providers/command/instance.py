"""`LaunchedInstance`: a box whose guest is reached by its socket, and whose processes are ours to see."""

import os
import socket
import struct

import msgspec

from hutch.errors import Unavailable
from hutch.linux import process_trees
from hutch.linux.processes import Identity
from hutch.model.limits import Limits
from hutch.model.spec import EffectiveSpec
from hutch.providers.base import InstanceRecord
from hutch.providers.command.jail_spec import UNHELD
from hutch.providers.guest_bundle.counters import AskedFacts, Facts
from hutch.providers.guest_bundle.instance import CountedInstance
from hutch.providers.guest_bundle.listener import NAME
from hutch.providers.guest_client.link import Link, connect_unix
from hutch.providers.guest_client.verdicts import Counters

_CREDENTIALS = struct.Struct("3i")


class WatchedFacts(AskedFacts):
    """Of a box whose guest counts what it killed for want of memory. Who met the limit of processes, nobody counts."""

    def read(self) -> Counters:
        return msgspec.structs.replace(super().read(), pids_hits=None)


class LaunchedInstance(CountedInstance):
    """Made of a guest that its provider has found at its door."""

    def __init__(
        self,
        record: InstanceRecord,
        spec: EffectiveSpec,
        guest: Identity,
        door: str,
        facts: Facts,
        *,
        watched: bool,
    ) -> None:
        """`watched`: the guest itself holds the memory."""

        async def connect() -> Link:
            return await Link.connect(f"{door}/{NAME}")

        super().__init__(record, spec, connect, facts)
        self._guest = guest
        self._watched = watched

    async def pause(self) -> None:
        """By signals: everything but the guest stands still."""
        try:
            await process_trees.stop(self._guest)
        except TimeoutError as error:
            process_trees.resume(self._guest)
            raise Unavailable(f"box {self.record.box_id} starts processes faster than they can be stopped") from error

    async def resume(self) -> None:
        process_trees.resume(self._guest)

    async def change_limits(self, limits: Limits) -> tuple[str, ...]:
        unchanged = await super().change_limits(limits)
        if not self._watched:
            return unchanged
        self.limits = self.limits.but(memory_mb=limits.memory_mb)
        await (await self.link()).request("watch", memory_bytes=limits.memory_mb << 20, pids=UNHELD)
        return tuple(name for name in unchanged if name != "memory_mb")


def knock(door: str) -> tuple[socket.socket, int]:
    """The connection to whoever listens at the door, and its pid on this machine; OSError if nobody does."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        connect_unix(sock, os.path.join(door, NAME))
    except BaseException:
        sock.close()
        raise
    pid, _, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return sock, pid
