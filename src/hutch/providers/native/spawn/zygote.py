"""The zygote: an idle fork of the spawner, from which every box is cloned.

After a fork each page that either side writes to exists twice, and running Python writes to hundreds of them
(reference counts). Cloned from the busy spawner, every box would keep an old copy of each page the spawner writes to
next. The zygote only waits and clones, so its boxes keep sharing its memory: 0.6 MB less for each.

The children belong to the spawner (CLONE_PARENT), not to the zygote. Standard library only.
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
from hutch.guest.files.basic import load_openssl
from hutch.linux import kernel
from hutch.linux.identity import EffectiveUser
from hutch.linux.kernel import CLONE_PARENT, clone
from hutch.providers.native.rootfs.build import UMASK
from hutch.providers.native.spawn.child import WarmUp, run_child
from hutch.providers.native.spawn.child_steps import OWN, SOCK, SPILL, SpawnerSettings
from hutch.providers.native.spawn.prefault import learn_pages

_HEAD = struct.Struct("<QiBB")
"""A request: flags of the clone; the user who makes it, or `SAME_USER`; whether the child starts in the directory
SPILL; whether the descriptor of a v2 control group comes with it."""
SAME_USER = -1
"""Stands for a user id: the zygote clones as itself."""
_PID = struct.Struct("<i")
_MAX_MESSAGE = 1 << 10
"""Most bytes of a problem that the zygote reports. An answer longer than a pid is one."""
_MAX_DESCRIPTORS = 4
"""Most descriptors of a request. They begin with SOCK: the zygote has only its standard streams and OWN open."""
_FAMILY, _KIND = int(AF_UNIX), int(SOCK_SEQPACKET)
_ANCILLARY_SIZE = CMSG_SPACE(_MAX_DESCRIPTORS * 4)
_CLOSE_ON_EXEC = int(MSG_CMSG_CLOEXEC)
_BOXES_BEFORE_WARM_UP = 2
"""Boxes made before the warm-up, which takes as long as making five of them."""
_WARM_UP_RUNS = 26
"""Runs after which the interpreter has specialised its code, so that children no longer write to it.

CPython 3.11 begins to specialise a function after 8 calls, and decides after 16 more.
"""


_fillers: list[object] = []
_MAX_FILLERS = 4096
_POOL, _POOL_HEADER = 1 << 14, 48
"""Sizes in obmalloc since CPython 3.10, where a pool holds objects of one size. Elsewhere little memory is wasted."""


class ZygoteDied(Exception):
    """The zygote died and was replaced. It may have made a child, so what that child was given must not be reused."""


class Zygote:
    """The spawner's handle on its zygote."""

    def __init__(self, settings: SpawnerSettings) -> None:
        self._settings = settings
        self.trouble = ""
        """A problem that the keeper should hear of. The reader clears it."""
        self._fork()

    def _fork(self) -> None:
        self._sock, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            _serve(theirs, self._settings)
        self._pidfd = os.pidfd_open(self.pid)
        theirs.close()

    def clone(self, flags: int, fds: list[int], cgroup: int | None, user: int = SAME_USER) -> int:
        """Clone a child of the spawner that performs the programs on its socket, and return its pid.

        Programs do not pass through the zygote, whose memory later boxes share. `fds` are SOCK, LISTENER and SPILL of
        `child_steps`. The kernel charges what is used in a user namespace also to the user who made it (pending
        signals, inotify, message queues, namespaces): `user` is that user, as whom the zygote acts during the clone.
        A child without an id range starts in the directory SPILL, which it must mount in its own namespace: the working
        directory is the only part of the host's mounts that the kernel moves there, whatever its name is by then.
        """
        places = [] if cgroup is None else [cgroup]
        head = _HEAD.pack(flags, user, not self._settings.has_id_ranges, cgroup is not None)
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
        """End the zygote and reap it.

        Otherwise it would end soon after us, as an orphan: perhaps as a child of a keeper that is the first process of
        a container and does not know it.
        """
        with suppress(ProcessLookupError, ChildProcessError):  # it was killed, and reaped by our loop
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        os.close(self._pidfd)
        self._sock.close()

    def _ask(self, head: bytes, fds: list[int]) -> bytes:
        """Send a request and return the answer, or nothing if the zygote is dead."""
        try:
            self._sock.sendmsg([head], [(SOL_SOCKET, SCM_RIGHTS, array("i", fds))])
            answer = self._sock.recv(_MAX_MESSAGE)
            if len(answer) <= _PID.size:
                return answer
            self.trouble = answer.decode(errors="replace")
            return self._sock.recv(_PID.size)
        except (BrokenPipeError, ConnectionResetError):
            return b""


def _serve(sock: socket, settings: SpawnerSettings) -> NoReturn:
    """Run the zygote; never returns, and ends with the spawner."""
    try:
        os.dup2(sock.fileno(), OWN, inheritable=False)
        kernel.close_from(SOCK)
        own = SocketType(_FAMILY, _KIND, 0, OWN)
        os.umask(UMASK)
        guest.ignore_signals()
        gc.freeze()
        effective_user = EffectiveUser()
        if "child programs" in settings.without:
            from hutch.providers.native.spawn import direct  # only the ablation bench asks for it

            direct.install(settings)
        if all(_clone_next(own, effective_user) for _ in range(_BOXES_BEFORE_WARM_UP)):
            # The problem is sent alone, before the next answer: a larger answer would take memory of every box.
            if trouble := _warm_up(settings):
                own.send(trouble.encode()[:_MAX_MESSAGE])
            while _clone_next(own, effective_user):
                pass
    finally:
        os._exit(0)


def _warm_up(settings: SpawnerSettings) -> str:
    """Warm up, and return why it failed, or "". It comes after the first boxes, which may be the only ones."""
    settings.command_line.show("hutch-zygote")
    trouble = ""
    try:
        load_openssl()
        if "warm-up" not in settings.without and not all(_warm_up_once() for _ in range(_WARM_UP_RUNS)):
            trouble = "a warm-up did not end"
        _close_leftovers()
        if "heap filling" not in settings.without:
            _fill_holes()
        if "prefault" not in settings.without:
            with closing(WarmUp()) as warm_up:
                learn_pages(warm_up.perform)
    except Exception as error:
        trouble = f"{type(error).__name__}: {error}"
    _close_leftovers()
    gc.freeze()
    return trouble and f"the process that boxes are cloned from could not warm up, and they need more memory: {trouble}"


def _warm_up_once() -> bool:
    with closing(WarmUp()) as warm_up:
        return warm_up.perform()


def _close_leftovers() -> None:
    """Collect and close what warm-ups left open. In a child, the same descriptor numbers would mean other files."""
    signal.set_wakeup_fd(-1)
    gc.collect()
    kernel.close_from(SOCK)


def _fill_holes() -> None:
    """Use up the free blocks between living objects, so that children allocate side by side on new pages.

    Python has a list of free blocks for each size of small objects, and they lie anywhere: a box would copy a page for
    nearly every object that it allocates.
    """
    for size in range(16, 513, 16):
        for number in range(_MAX_FILLERS):
            filler: object = bytes(size - 33) if size > 32 else (1 << 40) + number if size > 16 else object()
            if id(filler) % _POOL == _POOL_HEADER:
                break  # this is the first block of an empty pool, and is freed at once
            _fillers.append(filler)


def _clone_next(own: SocketType, effective_user: EffectiveUser) -> bool:
    """Wait for the next request and clone; False at end of file.

    An earlier child keeps an old copy of each page that this writes to between two clones, so it should be few.
    """
    head, ancillary, _, _ = own.recvmsg(_HEAD.size, _ANCILLARY_SIZE, _CLOSE_ON_EXEC)
    if not head:
        return False
    flags, user, starts_in_spill, has_cgroup = _HEAD.unpack(head)
    try:
        if starts_in_spill:
            fchdir(SPILL)
        if user != SAME_USER:
            effective_user.become(user)
        pid = clone(flags | CLONE_PARENT, array("i", ancillary[0][2])[-1] if has_cgroup else None)
    except OSError as error:
        pid = -(error.errno or 1)
    if pid == 0:
        closerange(SPILL + 1, SOCK + _MAX_DESCRIPTORS)
        run_child()
    if starts_in_spill:
        chdir("/")
    if user != SAME_USER:
        effective_user.return_to_root()
    own.send(_PID.pack(pid))
    closerange(SOCK, SOCK + _MAX_DESCRIPTORS)
    return True
