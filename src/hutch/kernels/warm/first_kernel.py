"""The first kernel of a box: a fork of the template that waited, with all its pages copied, to enter with the guest.

A fork of the kernel guest would start with every page shared, and its first run would copy two thousand of them. This
process is no fork of the guest, and nobody can become its parent later. So the box's PID 1 adopts it, and the kernel
guest knows it by a pidfd, which tells its exit status from Linux 6.15 on; on older kernels there is no first kernel.

Each has a Landlock domain of its own. The guest's does not confine signals, so it can signal the kernel; the code that
runs in the kernel cannot signal the guest.
"""

import json
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from hutch.kernels.programs.python.kernel import Prepared
from hutch.kernels.warm.entry import Entry, EntryRequest, Settings, be_placeholder, become_program
from hutch.linux import pid_namespace
from hutch.providers.native.spawn import wire

_ENTRY_SECONDS = 10.0


class FirstKernel:
    """The process as the kernel guest sees it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.pid = 0
        """Its pid in the box."""
        self.pidfd = self.asking = -1

    def enter(self, message: wire.Message, fds: Sequence[int]) -> None:
        """Have it enter the same box. What is wrong with it shows when it is begun."""
        with suppress(OSError):
            wire.send(self.sock, message, list(fds))

    def begin(
        self, streams: Sequence[int], env: Mapping[bytes, bytes], cwd: str, *, is_placeholder: bool
    ) -> bool:  # fmt: skip
        """Have it become the kernel with these streams; return False if it could not enter the box."""
        try:
            self.sock.settimeout(_ENTRY_SECONDS)
            entered = wire.receive(self.sock)
            if entered is None:
                return False
            variables = {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}
            content = json.dumps({"env": variables, "cwd": cwd, "placeholder": is_placeholder})
            given = wire.write_memfd(content.encode())
            try:
                wire.send(self.sock, {}, [*streams, given])
            finally:
                os.close(given)
        except OSError:
            return False
        finally:
            self.sock.close()
        self.pid = int(entered[0]["pid"])
        self.pidfd, self.asking = entered[1]
        return True


def wait_and_enter(sock: socket.socket, settings: Settings, prepared: Prepared) -> NoReturn:
    """Run in the process itself: wait for a box, enter it, and become a kernel there."""
    try:
        received = wire.receive(sock)
        if received is None:
            os._exit(0)  # The template has ended, or the guest could not enter.
        message, fds = received
        entry = Entry(settings, EntryRequest(fds[0], tuple(fds[1:]), **message))
        base = entry.join([sock.fileno()])
        # Once more, and the process in between is gone: the box's PID 1 adopts this one.
        pid_namespace.fork_into_pid_namespace()
        pidfd = os.pidfd_open(os.getpid())
        asking = entry.confine(base, "hutch-kernel", settings.kernel_domain)
        wire.send(sock, {"pid": os.getpid()}, [pidfd, asking])
        received = wire.receive(sock)
        if received is None:
            os._exit(0)
        *streams, given = received[1]
        content = json.loads(wire.read_memfd(given))
        become_program(streams, settings.command_line)
        if content["placeholder"]:
            be_placeholder()
        else:
            prepared.become({os.fsencode(k): os.fsencode(v) for k, v in content["env"].items()}, content["cwd"])
        os._exit(0)
    finally:
        os._exit(1)
