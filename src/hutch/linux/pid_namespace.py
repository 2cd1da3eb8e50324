"""Going on inside a pid namespace: setns(2) moves only children into one, and a fork of a large process is slow.

Standard library only: this runs in a fork of a template.
"""

import os
import select
from ctypes import byref, c_int
from fcntl import F_SETFL, F_SETOWN, fcntl
from signal import SIGKILL

from hutch.linux.kernel import NR, SIGCHLD, last_error, raw_syscall, syscall

_CLONE_VM = 0x100
_CLONE_VFORK = 0x4000
_CLONE_PARENT_SETTID = 0x100000
_F_SETSIG = 10  # fcntl(2); it has no name in the standard library.


def fork_into_pid_namespace() -> int:
    """Go on as a child of this process, in the pid namespace that it has joined. Returns the child's pid outside.

    The child takes over the memory as it is: no page table is copied, and no page when it is written to. The process
    itself ends without another step, so its parent sees it killed. It must have one thread.

    Raises:
        OSError: The kernel refused; the process is as it was.
    """
    own = os.pidfd_open(os.getpid())
    reader, writer = os.pipe()
    pid = c_int(0)
    try:
        # A byte in the pipe kills this process. Its child cannot: it does not see the pid of its parent.
        fcntl(reader, F_SETOWN, os.getpid())
        fcntl(reader, _F_SETSIG, SIGKILL)
        fcntl(reader, F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        # Otherwise the kernel clears the id of the thread that glibc keeps in the memory, when this process ends.
        syscall("set_tid_address", None)
        # Both would use one stack. The kernel stops the parent of a vfork, and it is killed before it could go on.
        flags = _CLONE_VM | _CLONE_VFORK | _CLONE_PARENT_SETTID | SIGCHLD
        if raw_syscall(NR["clone"], flags, None, byref(pid), None, None, None) < 0:
            raise last_error("clone")
        os.write(writer, b"1")
        waiting = select.poll()
        waiting.register(own, select.POLLIN)
        waiting.poll()
    finally:
        for fd in (own, reader, writer):
            os.close(fd)
    return pid.value
