"""The copier: a process beside the keeper that copies one kernel into kernels of other boxes, reports, and ends.

It is a process of its own because it waits for those that it stops, and because they end with it if it fails. Standard
library and `hutch.linux` only, so that it starts fast.
"""

import os
import socket
import time
from typing import NoReturn

from hutch.kernels.live.memory_copy import MemoryCopy
from hutch.linux import kernel
from hutch.linux.ptrace import Tracee
from hutch.providers.native.spawn import wire


def main(fd: int) -> NoReturn:
    """Copy the process `source` into each of `targets`, as the message on this socket says; never returns.

    With the message come pidfds of the source and of each target, opened by the keeper.
    """
    began = time.monotonic()
    sock = socket.socket(fileno=fd)
    kernel.close_all_but([fd])
    received = wire.receive(sock)
    if received is None:
        os._exit(0)
    message, (source_pidfd, *target_pidfds) = received
    try:
        source = Tracee(message["source"], source_pidfd)
        copied = 0
        for pid, pidfd in zip(message["targets"], target_pidfds, strict=True):
            target = Tracee(pid, pidfd)
            memory_copy = MemoryCopy(source, target)
            memory_copy.run()
            target.detach()
            copied += memory_copy.copied
        wire.send(sock, {"done": True, "copied": copied, "seconds": time.monotonic() - began})
    except BaseException as error:
        # The source and what is half done end with this process, which has them traced.
        wire.send(sock, wire.error_message("copy the kernel", error))
    os._exit(0)
