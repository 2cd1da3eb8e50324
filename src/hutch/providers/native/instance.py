"""A running native box: a guest instance with the counters, freezer and limits of its control group."""

import asyncio
import errno
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Set
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hutch.errors import EngineError, NotFound, Unavailable, Unsupported
from hutch.linux import cgroup_files
from hutch.linux.cgroups import Group, GroupLimits
from hutch.linux.processes import cpu_seconds
from hutch.model.limits import Limits
from hutch.model.results import Result, Usage
from hutch.model.spec import CheckedMount, EffectiveSpec, MountMode
from hutch.providers.base import Command, InstanceRecord
from hutch.providers.guest_client.disk_overrun import Overrun, full, refusal
from hutch.providers.guest_client.instance import GuestInstance
from hutch.providers.guest_client.link import Link, connect_unix
from hutch.providers.guest_client.process import GuestProcess
from hutch.providers.guest_client.verdicts import Counters
from hutch.providers.handles import Entrance
from hutch.providers.native.entrance import host_pid
from hutch.providers.native.network import namespaces
from hutch.providers.native.orders import BOOT_ID
from hutch.providers.native.rootfs.machine_view import machine_view
from hutch.providers.native.watch.files import WatchedFiles
from hutch.providers.native.watch.processes import BoxProcesses

if TYPE_CHECKING:
    from hutch.api import Files
    from hutch.providers.native.layers.client import NativeLayers
    from hutch.providers.native.watch.watchdogs import Watchdogs


OFFLINE = (
    "the box has lost its network, whose helper process was killed: use a new box, "
    "or stop this one if it is persistent, and it comes back with a network"
)

KERNEL_GUEST = "deputy-kernels"
"""The socket of the guest that kernels are forked from. Like those of root guests, it tells every keeper of it."""
_END_TIMEOUT = 10.0
"""Seconds that a guest may take to end the processes of its box."""
_PEER = struct.Struct("iII")  # struct ucred
_COUNTED = ("oom_kills", "pids_hits", "memory_peak_bytes")


class GroupFacts:
    """Counters of a control group, and of the watchdogs where the kernel does not enforce a limit."""

    def __init__(self, group: Callable[[], Group | None], watched: Callable[[], Counters]) -> None:
        self._group = group
        self._watched = watched

    def read(self) -> Counters:
        group, watched = self._group(), self._watched()
        if group is None:
            return watched
        try:
            facts = group.facts(_COUNTED)
        except FileNotFoundError:
            return Counters()  # the box was destroyed meanwhile
        return Counters(
            oom_kills=(facts.oom_kills or 0) + watched.oom_kills,
            pids_hits=facts.pids_hits,
            memory_peak_bytes=facts.memory_peak_bytes,
            disk_ends=watched.disk_ends,
            excess=watched.excess,
        )


class NativeInstance(GuestInstance):
    """Implements what `GuestInstance` leaves to the engine."""

    def __init__(
        self,
        record: InstanceRecord,
        spec: EffectiveSpec,
        connect: Callable[[], Awaitable[Link]],
        open_group: Callable[[], Group | None],
        group_limits: Callable[[Limits], GroupLimits],
        root_guest: Callable[[str], Awaitable[Link]],
        watchdogs: "Watchdogs",
        *,
        fresh: bool,
        show: Callable[[CheckedMount], Awaitable[None]],
        entrance: "Callable[[NativeInstance], Awaitable[Entrance | None]]",
        work_on_layers: Callable[[dict[str, Any], list[int]], Awaitable[dict[str, Any]]],
    ) -> None:
        facts = GroupFacts(self._opened, lambda: watchdogs.counters(record.box_id))
        super().__init__(record, spec, connect, facts, root_guest=root_guest)
        self._watchdogs = watchdogs
        self._show = show
        self._other_guests["kernels"] = self._connect_kernels
        self._entrance = entrance
        self._work_on_layers = work_on_layers
        self._files = self._written = WatchedFiles(self.link, self.copy_limit, watchdogs.disk_watch(record.box_id))
        self._open_group = open_group
        self._group: Group | None = None
        self._asked = False
        self._group_limits = group_limits
        if fresh and record.data.get("groups"):
            self._untouched = Counters(oom_kills=0, pids_hits=0)

    def files_as(self, user: str) -> "Files":
        return WatchedFiles(lambda: self.link(user), self.copy_limit, self._watchdogs.disk_watch(self.record.box_id))

    def _prepare_result(self) -> None:
        group = self._opened()
        if group is not None:
            group.prepare(_COUNTED)

    def _opened(self) -> Group | None:
        """The box's group, opened on first use, because many boxes are destroyed without one."""
        if not self._asked:
            self._asked = True
            self._group = self._open_group()
        return self._group

    async def entrance(self) -> Entrance | None:
        return await self._entrance(self)

    @property
    def group(self) -> Group | None:
        """Its control group; None without one."""
        return self._opened()

    async def show(self, place: CheckedMount) -> None:
        await self._show(place)

    @cached_property
    def layers(self) -> "NativeLayers":
        from hutch.providers.native.layers.client import NativeLayers  # few boxes need it

        return NativeLayers(self, self._work_on_layers)

    async def kill_processes(self) -> None:
        """End all processes but the guests, and wait for their end."""
        async for link in self._all_guests():
            await link.request("kill_all", timeout=_END_TIMEOUT)
            await link.request("make_room", timeout=_END_TIMEOUT)

    async def reboot(self) -> None:
        """End all processes, and give the box another boot id, as programs expect it of a machine."""
        from tempfile import NamedTemporaryFile  # They are rarely needed and slow to load.
        from uuid import uuid4

        await self.kill_processes()
        with NamedTemporaryFile(prefix="hutch-boot-") as file:
            file.write(f"{uuid4()}\n".encode())
            file.flush()
            os.fchmod(file.fileno(), 0o444)
            found = os.fstat(file.fileno())
            with suppress(Unsupported):  # An ordinary user's box keeps the machine's id.
                # The mount keeps the file, which has no name any more: nobody could write to it by one.
                await self._show(CheckedMount(
                    real=os.path.realpath(file.name), target=BOOT_ID, mode=MountMode.RO, dev=found.st_dev,
                    ino=found.st_ino, public=True,
                ))  # fmt: skip

    async def _all_guests(self) -> AsyncIterator[Link]:
        """The links to the box's guest, to those of other users, and to the one that kernels are forked from."""
        for user in (None, *self._root_guest_users()):
            with suppress(NotFound):  # The guest of the kernels has ended, and its kernels with it.
                yield await self.link(user)

    async def host_pid(self, process: GuestProcess) -> int:
        """Return the pid on this machine of a job of the box; 0 if it has ended."""
        link = await self.link_of(process.id)
        inside = (await process.info()).pid
        # The box's first kernel is no child of the guest that serves it: PID 1 has adopted it.
        of_kernel_guest = link is self._links.get("kernels") and host_pid(self._kernel_guest_pid(), inside)
        return of_kernel_guest or host_pid(self.pid, inside)

    def _kernel_guest_pid(self) -> int:
        """The pid of the process that listens at the kernel guest's socket, as the kernel tells it."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            connect_unix(sock, f"{self.record.data['directory']}/{KERNEL_GUEST}")
            pid: int = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[0]
        return pid

    async def _connect_kernels(self) -> Link:
        path = f"{self.record.data['directory']}/{KERNEL_GUEST}"
        try:
            return await Link.connect(path)
        except Unavailable as error:
            # A dying guest closes its connections before its listening socket, so a reset means the same.
            if error.details.get("errno") not in (errno.ECONNREFUSED, errno.ECONNRESET, errno.ENOENT):
                raise
            with suppress(FileNotFoundError):
                os.unlink(path)
            raise NotFound(f"box {self.record.box_id} has no guest for kernels") from error

    def trouble(self) -> str:
        """Report that the box has lost its network, which needs helper processes that somebody may kill."""
        uplink = self.record.data.get("uplink")
        return "" if not isinstance(uplink, str) or namespaces.uplink_is_alive(uplink) else OFFLINE

    async def run(self, command: Command) -> Result:
        if excess := await self._watchdogs.over_limit(self.record.box_id):
            return Result(job_id="", exit_code=None, verdict=refusal(excess))
        self._watchdogs.note_activity(self.record.box_id)
        return await super().run(command)

    async def start(self, command: Command) -> GuestProcess:
        if excess := await self._watchdogs.over_limit(self.record.box_id):
            raise full(excess, "start")
        self._watchdogs.note_activity(self.record.box_id)
        return await super().start(command)

    def works_unseen(self) -> bool:
        """Whether something may write that is no descendant of the guest: the guest itself, or below a root guest."""
        root_guests = self._root_guest_users()
        if self._written.writing or not root_guests:
            return bool(self._written.writing)
        members = self.members()
        return not members or len(members) > 1 + len(root_guests)

    def members(self) -> set[int]:
        """Every process of the box, from its control group; empty without one."""
        groups = self.record.data.get("groups")
        if not isinstance(groups, list) or not groups:
            return set()
        try:
            return cgroup_files.members(str(groups[0]))
        except FileNotFoundError:
            return set()  # the box has been destroyed

    def removed_bytes(self, devices: Set[int]) -> int:
        from hutch.providers.native.watch.disk_usage import unlinked_bytes  # Few owners' volumes are limited.

        return unlinked_bytes(self._processes(), devices)

    def _processes(self) -> set[int]:
        """Every process of the box; without a control group those that descend from its guest."""
        if members := self.members():
            return members
        try:
            box = BoxProcesses(self.pid)
        except ProcessLookupError:
            return set()
        try:
            return box.users()
        finally:
            box.close()

    @property
    def pid(self) -> int:
        """The pid of its guest."""
        return int(str(self.record.data["pid"]))

    def users(self) -> set[int]:
        """Every process of the box but the guest."""
        return self.members() - {self.pid}

    async def end_processes(self, overrun: Overrun) -> None:
        """End all processes but the guests. Root guests end those of other users, which the first guest cannot."""
        async for link in self._all_guests():
            # Counted before the request, so that a command which was sent earlier knows why it ended.
            overrun.ends += 1
            await link.request("kill_all", timeout=_END_TIMEOUT)
            await link.request("make_room", timeout=_END_TIMEOUT)

    def _root_guest_users(self) -> list[str]:
        """Users who have a root guest, by the names of their sockets: an earlier keeper may have started them."""
        try:
            names = os.listdir(str(self.record.data["directory"]))
        except FileNotFoundError:
            return []  # the box has been destroyed
        return ["root" if name == "deputy" else name[7:] for name in names if name.startswith("deputy")]

    async def pause(self) -> None:
        group = self._opened()
        if group is None:
            if not await asyncio.to_thread(self._watchdogs.pause, self.record.box_id):
                raise _no_freezer()
            return
        try:
            await asyncio.to_thread(group.freeze)
        except OSError as error:
            raise EngineError(f"box {self.record.box_id} could not be frozen: {error}", op="pause") from error

    async def resume(self) -> None:
        group = self._opened()
        if group is None:
            if not await asyncio.to_thread(self._watchdogs.resume, self.record.box_id):
                raise _no_freezer()
            return
        await asyncio.to_thread(group.thaw)

    async def usage(self) -> Usage:
        counted = await super().usage()
        user, system = await asyncio.to_thread(self._cpu_seconds)
        return counted.but(cpu_user_sec=user, cpu_system_sec=system)

    def _cpu_seconds(self) -> tuple[float, float]:
        """User and system time of the processes that run, and of those that the box's first process has reaped."""
        pid = self.record.data["pid"]
        assert isinstance(pid, int)
        try:
            box = BoxProcesses(pid)
        except ProcessLookupError:
            return 0.0, 0.0
        try:
            times = [cpu_seconds(each) for each in (pid, *box.users())]
        finally:
            box.close()
        return sum(user for user, _ in times), sum(system for _, system in times)

    async def change_limits(self, limits: Limits) -> tuple[str, ...]:
        """Change the limits of the control group at once. Disk and open files would need a new box."""
        unchanged = await super().change_limits(limits)
        group = self._opened()
        held = {"cpus", "memory_mb"} if group is None else {"cpus", "memory_mb", "pids"}
        live = held & set(unchanged)
        if live:
            self.limits = self.limits.but(**{name: getattr(limits, name) for name in live})
            if group is None:
                self._watchdogs.change(self.record.box_id, self.limits)
            else:
                group.limit(self._group_limits(self.limits))
            view = machine_view(self.limits.cpus, self.limits.memory_mb)
            await (await self.link()).request("view", timeout=_END_TIMEOUT, files=dict(view))
        return tuple(name for name in unchanged if name not in live)

    async def close(self) -> None:
        await super().close()
        if "layers" in self.__dict__:  # few boxes have used them
            self.layers.forget_shared()
        if self._group is not None:
            self._group.close()


def _no_freezer() -> Unsupported:
    return Unsupported(
        "a box without a control group or a watchdog cannot be paused", op="pause", remedy="see `hutch doctor`: cgroups"
    )
