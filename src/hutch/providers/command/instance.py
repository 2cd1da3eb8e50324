"""`CommandInstance`: a box whose guest is reached by its socket and whose processes we can see on the host."""

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
from hutch.providers.guest_bundle.counters import BoxCounters, GuestCounters
from hutch.providers.guest_bundle.instance import BundledInstance
from hutch.providers.guest_bundle.listener import SOCKET_NAME
from hutch.providers.guest_client.link import Link, connect_unix
from hutch.providers.guest_client.verdicts import Counters

_CREDENTIALS = struct.Struct("3i")


class WatchdogCounters(GuestCounters):
    """Counters of a box whose guest counts what it killed for memory. Nobody counts who met the process limit."""

    def read(self) -> Counters:
        return msgspec.structs.replace(super().read(), pids_hits=None)


class CommandInstance(BundledInstance):
    """A box whose guest listens in `socket_dir`."""

    def __init__(
        self,
        record: InstanceRecord,
        spec: EffectiveSpec,
        guest: Identity,
        socket_dir: str,
        counters: BoxCounters,
        *,
        watched: bool,
    ) -> None:
        """`watched` says that the guest's own watchdog enforces the memory limit."""

        async def connect() -> Link:
            return await Link.connect(f"{socket_dir}/{SOCKET_NAME}")

        super().__init__(record, spec, connect, counters)
        self._guest = guest
        self._watched = watched

    async def pause(self) -> None:
        """Stop every process but the guest with signals."""
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


def connect_to_guest(socket_dir: str) -> tuple[socket.socket, int]:
    """Return a connection to the guest and its pid on this machine. Raises OSError if nobody listens."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        connect_unix(sock, os.path.join(socket_dir, SOCKET_NAME))
    except BaseException:
        sock.close()
        raise
    pid, _, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return sock, pid
