"""The zygote: an idle twin of the spawner, from which every box is cloned.

After a fork each page that either side writes to exists twice, and running Python writes to hundreds of them
(reference counts). Cloned from the busy spawner, every box would keep an old copy of whatever the spawner touches next.
The zygote only waits, clones and waits again, so that its boxes go on sharing its memory: 0.6 MB less for each.

The children are the spawner's (CLONE_PARENT), not the zygote's. Standard library only.
"""

import gc
import os
import signal
import struct
from array import array
from marshal import dumps, loads
from socket import AF_UNIX, CMSG_SPACE, MSG_CMSG_CLOEXEC, SCM_RIGHTS, SOCK_SEQPACKET, SOL_SOCKET, socket, socketpair
from typing import Any, NoReturn

from hutch.guest import main as guest
from hutch.providers.native import birth, kernel
from hutch.providers.native.birth import Child, Claim, Doors, Setting
from hutch.providers.native.kernel import clone
from hutch.providers.native.root import Shape

_CLONE_PARENT = 0x8000
_HEAD = struct.Struct("<QBB")
"""Flags of the clone; whether a descriptor of the options and one of a v2 control group come with it."""
_PID = struct.Struct("<i")
_LARGEST = 1 << 17
_DESCRIPTORS = 5
_CLOSE_ON_EXEC = int(MSG_CMSG_CLOEXEC)
_WARM_UP = 26
"""Runs after which the interpreter has specialised its code, so that children need not write to it any more.

CPython 3.11 begins with it after 8 calls, and decides after 16 more.
"""


class Zygote:
    """The spawner's handle."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._fork()

    def _fork(self) -> None:
        self._sock, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            _serve(theirs, self._setting)
        theirs.close()

    def clone(
        self, flags: int, sock: int, doors: Doors, shape: Shape, entrances: tuple[str, ...], cgroup: int | None,
        ordered: tuple[Claim, int] | None,
    ) -> int:  # fmt: skip
        """A child of ours that becomes a box; its pid."""
        # Not JSON: what the zygote does with it is done in memory that every box gets a copy of.
        claim = (*ordered[0][:-1], tuple(map(tuple, ordered[0].extras))) if ordered else None
        content: Any = (tuple(shape), claim, entrances)
        body = dumps(content)
        fds = [sock, doors.listener, doors.spill]
        fds += [ordered[1]] if ordered else []
        fds += [cgroup] if cgroup is not None else []
        head = _HEAD.pack(flags, ordered is not None, cgroup is not None)
        answer = self._ask(head, body, fds)
        if not answer:  # it was killed, perhaps for want of memory
            self._sock.close()
            self._fork()
            answer = self._ask(head, body, fds)
        pid: int = _PID.unpack(answer)[0]
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid), "clone")
        return pid

    def _ask(self, head: bytes, body: bytes, fds: list[int]) -> bytes:
        """The answer, or nothing if the zygote is dead."""
        try:
            self._sock.sendmsg([head, body], [(SOL_SOCKET, SCM_RIGHTS, array("i", fds))])
            return self._sock.recv(_PID.size)
        except (BrokenPipeError, ConnectionResetError):
            return b""


def _serve(sock: socket, setting: Setting) -> NoReturn:
    """Never returns; ends with the spawner. As little as possible happens between two clones."""
    try:
        kernel.close_but([sock.fileno()])
        for _ in range(_WARM_UP):
            birth.rehearse(setting)
        signal.set_wakeup_fd(-1)
        guest.ignore_signals()
        # Now, not in a child: there the numbers of the descriptors these would close mean something else.
        gc.collect()
        kernel.close_but([sock.fileno()])  # what the rehearsals left open
        gc.freeze()
        _clone_for_ever(sock, setting)
    finally:
        os._exit(0)


def _clone_for_ever(sock: socket, setting: Setting) -> None:
    room = CMSG_SPACE(_DESCRIPTORS * 4)
    buffer = memoryview(bytearray(_LARGEST))
    fds = array("i")
    while True:
        size, ancillary, _, _ = sock.recvmsg_into([buffer], room, _CLOSE_ON_EXEC)
        if not size:
            return
        del fds[:]
        fds.frombytes(ancillary[0][2])
        flags, has_options, has_cgroup = _HEAD.unpack_from(buffer)
        try:
            pid = clone(flags | _CLONE_PARENT, fds[-1] if has_cgroup else None)
        except OSError as error:
            pid = -(error.errno or 1)
        if pid == 0:
            _become(buffer[_HEAD.size : size], fds.tolist(), has_options, setting)
        sock.send(_PID.pack(pid))
        for fd in fds:
            os.close(fd)
        buffer[:size] = bytes(size)  # the next box has no business with this one's mounts


def _become(body: memoryview, fds: list[int], has_options: bool, setting: Setting) -> NoReturn:
    try:
        shape, claim, entrances = loads(body)
        sock = socket(fileno=fds[0])
        child = Child(setting, Shape(*shape), sock, Doors(fds[1], fds[2]))
        child.live(entrances, (Claim.parse(claim), fds[3]) if has_options else None)
    finally:
        os._exit(1)  # only if what came was no order at all: `live` reports everything else
