"""The way into a native box for a process that the keeper has forked, as root and as an ordinary user."""

import contextlib
import os
from typing import TYPE_CHECKING

from hutch.errors import HutchError
from hutch.linux.cgroups import Group
from hutch.providers.base import Command
from hutch.providers.handles import Entrance
from hutch.providers.native import orders

if TYPE_CHECKING:
    from hutch.providers.guest_client.process import GuestProcess
    from hutch.providers.native.instance import NativeInstance
    from hutch.providers.native.watch.watchdogs import Watchdogs

_HOLDER = ("sleep", "60")


class NativeEntrance(Entrance):
    """Descriptors of one box's namespaces and control groups."""

    def __init__(self, box: "NativeInstance", watchdogs: "Watchdogs", pid: int, holder: "GuestProcess | None") -> None:
        """`holder` is a program that runs in the box until the entrance is closed."""
        self._box = box
        self._watchdogs = watchdogs
        self._own: list[int] = []
        self._holder = holder
        self.pid = pid
        self.pidfd = self._keep(os.pidfd_open(pid))
        self.has_id_ranges = holder is None
        self.options = orders.kernel_guest_options(box.record, box.spec)
        self.directory = str(box.record.data["directory"])
        group = box.group
        self.groups: tuple[int, ...] = ()
        self.unified = False
        try:
            if group is not None:
                self._open_group(group)
        except BaseException:
            self._close_own()
            raise

    def _open_group(self, group: Group) -> None:
        tasks = [self._keep(os.open(path, os.O_WRONLY | os.O_CLOEXEC)) for path in group.tasks_files()]
        directory = group.directory_fd()
        self.unified = directory is not None
        self.groups = (*tasks, *(() if directory is None else (directory,)))

    def _keep(self, fd: int) -> int:
        self._own.append(fd)
        return fd

    def entered(self, pid: int) -> None:
        self._watchdogs.include(self._box.record.box_id, pid)

    async def close(self) -> None:
        self._close_own()
        if self._holder is not None:
            await _end(self._box, self._holder)

    def _close_own(self) -> None:
        while self._own:
            os.close(self._own.pop())


async def open_entrance(box: "NativeInstance", watchdogs: "Watchdogs", *, has_id_ranges: bool) -> Entrance | None:
    """Open the entrance of a running box; None if it cannot be entered.

    The kernel lets an ordinary user into the namespaces of a dumpable process only, and the guest is not dumpable. So
    a program is started in the box for a moment, and entered by.
    """
    guest = box.record.data["pid"]
    assert isinstance(guest, int)
    if has_id_ranges:
        return NativeEntrance(box, watchdogs, guest, None)
    holder = await box.start(Command(command=_HOLDER))
    try:
        if pid := host_pid(guest, (await holder.info()).pid):
            return NativeEntrance(box, watchdogs, pid, holder)
    except BaseException:
        await _end(box, holder)
        raise
    await _end(box, holder)
    return None


def host_pid(parent: int, inside: int) -> int:
    """Return the pid on the host of the parent's child with the pid `inside` in the box; 0 if there is none.

    The kernel says which processes are the parent's children and whose they are, so nothing in the box can name another
    process here, nor one of another user of the box.
    """
    with contextlib.suppress(OSError, ValueError):
        user, _ = _owner_and_pid(parent)
        with open(f"/proc/{parent}/task/{parent}/children") as file:
            children = [int(word) for word in file.read().split()]
        for pid in children:
            with contextlib.suppress(OSError):
                if _owner_and_pid(pid) == (user, inside):
                    return pid
    return 0


def _owner_and_pid(pid: int) -> tuple[list[str], int]:
    """The user ids of a process, and its pid in its own namespace."""
    with open(f"/proc/{pid}/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return fields["Uid"].split(), int(fields["NSpid"].split()[-1])


async def _end(box: "NativeInstance", holder: "GuestProcess") -> None:
    with contextlib.suppress(HutchError):  # If it cannot be ended now, it ends by itself in a minute.
        await holder.signal(9)
        await holder.wait(10.0)
        await box.forget(holder.id)
