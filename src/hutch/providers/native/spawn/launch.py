"""Starts the process of a spawner, and does so early if the command line shows that one will be needed.

The spawner's start and the keeper's own imports take about equally long and can run side by side, so `hutch run` calls
`launch_early` before it imports anything heavy. Standard library only, and little of it.
"""

import contextlib
import os
import select
import signal
import socket
import sys

_SOURCE = os.path.abspath(__file__ + "/../../../../..")
_SOCKET = 3
# A failure at the start is reported on the socket, because the spawner has no terminal. The collector stays on during
# the imports: what survives then lies closer together, and each box has a tenth of a megabyte less of its own.
_BOOTSTRAP = f"""
import os, sys
sys.path.append(sys.argv[1])
try:
    os.chdir("/")
    from hutch.providers.native.spawn import spawner
    spawner.main({_SOCKET})
    os._exit(0)  # everything is closed; the interpreter's own teardown would keep the keeper waiting
except Exception:
    import json, socket, traceback
    socket.socket(fileno={_SOCKET}).send(json.dumps({{"n": 0, "error": traceback.format_exc(-3)}}).encode())
"""

_early: list["SpawnerProcess"] = []


class SpawnerProcess:
    """A spawner process that starts up and waits for its options on `sock`. End of file ends it."""

    def __init__(self) -> None:
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Use the interpreter behind a virtual environment: -I -S would not find that environment's packages anyway.
        interpreter = getattr(sys, "_base_executable", None) or sys.executable
        nothing = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
        with theirs:
            self.pid = os.posix_spawn(
                interpreter,
                [interpreter, "-I", "-S", "-c", _BOOTSTRAP, _SOURCE],
                {},
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), _SOCKET), *nothing],
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
            )

    def wait(self, timeout: float) -> None:
        """Block until the process has ended, and kill it if that takes too long."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # something else has reaped it
            pidfd = os.pidfd_open(self.pid)
            try:
                ended = select.poll()
                ended.register(pidfd, select.POLLIN)
                if not ended.poll(timeout * 1000):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            finally:
                os.close(pidfd)


def launch_early() -> None:
    """Start a spawner now. The next `launch` in this process returns it."""
    _early.append(SpawnerProcess())


def launch() -> SpawnerProcess:
    return _early.pop() if _early else SpawnerProcess()
