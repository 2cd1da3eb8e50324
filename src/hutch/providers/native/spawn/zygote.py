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
from contextlib import closing, suppress
from os import chdir, closerange, fchdir
from socket import (
    AF_UNIX,
    CMSG_SPACE,
    MSG_CMSG_CLOEXEC,
    SCM_RIGHTS,
    SOCK_SEQPACKET,
    SOL_SOCKET,
    SocketType,
    socket,
    socketpair,
)
from typing import NoReturn

from hutch.guest import main as guest
from hutch.linux import kernel
from hutch.linux.identity import Actor
from hutch.linux.kernel import CLONE_PARENT, clone
from hutch.providers.native.rootfs.build import UMASK
from hutch.providers.native.spawn.child import Rehearsal, live
from hutch.providers.native.spawn.child_steps import OWN, SOCK, SPILL, Setting
from hutch.providers.native.spawn.prefault import learn

_HEAD = struct.Struct("<QiBB")
"""Flags of the clone; who makes it, or `SELF`; whether the child is to begin in SPILL; whether the descriptor of a v2
control group comes with it."""
SELF = -1
"""Instead of a user's id: the zygote stays who it is."""
_PID = struct.Struct("<i")
_LONGEST = 1 << 10
"""Of what the zygote says in words; anything longer than a pid is."""
_DESCRIPTORS = 4
"""Of a request, at most. They begin with SOCK: the zygote has nothing open but its standard streams and OWN."""
_FAMILY, _KIND = int(AF_UNIX), int(SOCK_SEQPACKET)
_ROOM = CMSG_SPACE(_DESCRIPTORS * 4)
_CLOSE_ON_EXEC = int(MSG_CMSG_CLOEXEC)
_COLD = 2
"""Boxes made before the warm-up, which takes as long as five of them."""
_WARM_UP = 26
"""Runs after which the interpreter has specialised its code, so that children need not write to it any more.

CPython 3.11 begins with it after 8 calls, and decides after 16 more.
"""


_fillers: list[object] = []
_MOST_FILLERS = 4096
_POOL, _POOL_HEADER = 1 << 14, 48
"""Of obmalloc since CPython 3.10: a pool holds objects of one size. Elsewhere nothing is found, and little wasted."""


class ZygoteDied(Exception):
    """There is a new one. The old one may have made a child: what it was to have must not be given to another."""


class Zygote:
    """The spawner's handle."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.trouble = ""
        """What the keeper should hear of; whoever tells it clears it."""
        self._fork()

    def _fork(self) -> None:
        self._sock, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            _serve(theirs, self._setting)
        self._pidfd = os.pidfd_open(self.pid)
        theirs.close()

    def clone(self, flags: int, fds: list[int], cgroup: int | None, maker: int = SELF) -> int:
        """A child of ours that performs the programs which it finds on its socket (`stages`); its pid.

        They do not pass through the zygote, whose memory the next box gets and which has no business with these mounts.
        `fds` are those that `stages` calls SOCK, LISTENER and SPILL. The kernel charges what is done in a user
        namespace to the user who made it too, in the namespace above (signals that wait, inotify, message queues,
        namespaces): `maker` is that user, as whom the zygote acts for the moment of the clone. A child without a range
        of ids begins in the directory SPILL, since it must make a mount of it in its own namespace: a working directory
        is the one thing of the host's that the kernel moves there with it, whatever name it has by then.
        """
        places = [] if cgroup is None else [cgroup]
        head = _HEAD.pack(flags, maker, not self._setting.ranged, cgroup is not None)
        answer = self._ask(head, [*fds, *places])
        if not answer:  # it was killed, perhaps for want of memory
            self._sock.close()
            os.close(self._pidfd)
            self._fork()
            self.trouble = "the process that boxes are cloned from was killed, and is replaced"
            raise ZygoteDied("the process that boxes are cloned from was killed")
        pid: int = _PID.unpack(answer)[0]
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid), "clone")
        return pid

    def close(self) -> None:
        """End it and reap it. By itself it would end soon after us, a child of whoever reaps orphans: perhaps of a
        keeper that is the first process of a container, and knows nothing of it."""
        with suppress(ProcessLookupError, ChildProcessError):  # it was killed, and reaped by our loop
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        os.close(self._pidfd)
        self._sock.close()

    def _ask(self, head: bytes, fds: list[int]) -> bytes:
        """The answer, or nothing if the zygote is dead."""
        try:
            self._sock.sendmsg([head], [(SOL_SOCKET, SCM_RIGHTS, array("i", fds))])
            answer = self._sock.recv(_LONGEST)
            if len(answer) <= _PID.size:
                return answer
            self.trouble = answer.decode(errors="replace")
            return self._sock.recv(_PID.size)
        except (BrokenPipeError, ConnectionResetError):
            return b""


def _serve(sock: socket, setting: Setting) -> NoReturn:
    """Never returns; ends with the spawner."""
    try:
        os.dup2(sock.fileno(), OWN, inheritable=False)
        kernel.close_from(SOCK)
        own = SocketType(_FAMILY, _KIND, 0, OWN)
        os.umask(UMASK)
        guest.ignore_signals()
        gc.freeze()
        actor = Actor()
        if "child programs" in setting.without:
            from hutch.providers.native.spawn import direct  # only the ablation bench asks for it

            direct.install(setting)
        if all(_clone_next(own, actor) for _ in range(_COLD)):
            # On its own, before the next answer: one that had room for it would take more memory of every box.
            if trouble := _warm_up(setting):
                own.send(trouble.encode()[:_LONGEST])
            while _clone_next(own, actor):
                pass
    finally:
        os._exit(0)


def _warm_up(setting: Setting) -> str:
    """After the first boxes, which may be the only ones, and whose user waits (`hutch run`); why it did not succeed."""
    setting.command_line.show("hutch-zygote")
    trouble = ""
    try:
        if "warm-up" not in setting.without and not all(_rehearse() for _ in range(_WARM_UP)):
            trouble = "a rehearsal did not come to its end"
        _clear_the_stage()
        if "heap filling" not in setting.without:
            _fill_holes()
        if "prefault" not in setting.without:
            with closing(Rehearsal()) as rehearsal:
                learn(rehearsal.perform)
    except Exception as error:
        trouble = f"{type(error).__name__}: {error}"
    _clear_the_stage()
    gc.freeze()
    return trouble and f"the process that boxes are cloned from could not warm up, and they need more memory: {trouble}"


def _rehearse() -> bool:
    with closing(Rehearsal()) as rehearsal:
        return rehearsal.perform()


def _clear_the_stage() -> None:
    """Now, not in a child: there the numbers of the descriptors that a collection would close mean something else."""
    signal.set_wakeup_fd(-1)
    gc.collect()
    kernel.close_from(SOCK)  # what the rehearsals left open


def _fill_holes() -> None:
    """Use up the free blocks between living objects, so that children put what they make side by side on new pages.

    Python has a list of free blocks for each size of small objects, and they lie anywhere: a box would have its own
    copy of a page for nearly every object that it makes.
    """
    for size in range(16, 513, 16):
        for number in range(_MOST_FILLERS):
            filler: object = bytes(size - 33) if size > 32 else (1 << 40) + number if size > 16 else object()
            if id(filler) % _POOL == _POOL_HEADER:
                break  # the first of an empty pool, given back at once
            _fillers.append(filler)


def _clone_next(own: SocketType, actor: Actor) -> bool:
    """Wait for the next request and do it; False at the end.

    Whatever this writes to between two clones the earlier child keeps an old copy of: it should be little.
    """
    head, ancillary, _, _ = own.recvmsg(_HEAD.size, _ROOM, _CLOSE_ON_EXEC)
    if not head:
        return False
    flags, maker, begins_in_spill, has_cgroup = _HEAD.unpack(head)
    try:
        if begins_in_spill:
            fchdir(SPILL)
        if maker != SELF:
            actor.become(maker)
        pid = clone(flags | CLONE_PARENT, array("i", ancillary[0][2])[-1] if has_cgroup else None)
    except OSError as error:
        pid = -(error.errno or 1)
    if pid == 0:
        closerange(SPILL + 1, SOCK + _DESCRIPTORS)
        live()
    if begins_in_spill:
        chdir("/")
    if maker != SELF:
        actor.return_to_root()
    own.send(_PID.pack(pid))
    closerange(SOCK, SOCK + _DESCRIPTORS)
    return True
