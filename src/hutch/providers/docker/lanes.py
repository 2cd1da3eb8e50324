"""The two ways to reach a bundled guest. Both lanes carry the same protocol to the same guest.

Fast: straight to the guest's socket, through the root directory of the container's first process. Only where we are
root on the engine's own machine, and only with runtimes whose containers are processes of this kernel. Nothing is given
up for it: the engine itself started the guest, with its filter, capabilities and label, and the guest starts commands.
API: an exec of the engine runs a relay inside that carries the bytes. Everywhere else.
"""

import asyncio
import ctypes
import errno
import os
import socket
import struct
from typing import Protocol

from hutch.errors import BoxBroken, Detail, HutchError, Unavailable
from hutch.linux.processes import Identity
from hutch.providers.docker.engine.api import Engine
from hutch.providers.docker.engine.hijack import hijack
from hutch.providers.docker.engine.http import EngineRefused
from hutch.providers.guest_bundle.listener import SOCKET_NAME, framed_options
from hutch.providers.guest_bundle.pack import GuestBundle
from hutch.providers.guest_client.link import Link

TIMEOUT = 30.0
"""Seconds that a guest which was just started may take to listen."""
RELAY_USER = "0:0"
"""Root without any capability. By this user the guest distinguishes a relay from the box's own commands."""

_BACKLOG_TIMEOUT = 5.0
"""Seconds that a connection may wait while the guest's backlog is full."""
_OPENAT2 = 437
_IN_ROOT, _NO_SYMLINKS, _NO_MAGICLINKS = 0x10, 0x04, 0x02
_CREDENTIALS = struct.Struct("3i")


class Lane(Protocol):
    """A way to the guests of one container."""

    name: str

    async def connect(self, place: str, options: bytes | None = None) -> Link:
        """Connect to the guest that listens in `place`. `options` are for a guest that was just started.

        Raises Unavailable; with errno ECONNREFUSED or ENOENT the guest has certainly ended.
        """


class FastLane:
    """Connects through /proc, as root on the same machine."""

    name = "fast"

    def __init__(self, first: Identity) -> None:
        self._first = first
        """The container's first process. Its pid counts only together with its start time, because pids are reused."""

    async def connect(self, place: str, options: bytes | None = None) -> Link:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while True:
            try:
                sock = self._connect_socket(place)
                break
            except OSError as error:
                if not self._first.alive():
                    raise _nobody_listens(
                        place, ConnectionRefusedError(errno.ECONNREFUSED, "its first process ended")
                    ) from error
                timeout = _BACKLOG_TIMEOUT if error.errno == errno.EAGAIN else TIMEOUT if options is not None else 0.0
                if loop.time() - begun >= timeout:
                    raise _nobody_listens(place, error) from error
            await asyncio.sleep(0.002)
        if options is not None:
            try:
                await loop.sock_sendall(sock, framed_options(options))
            except BaseException:
                sock.close()
                raise
        return await Link.over(sock)

    def _connect_socket(self, place: str) -> socket.socket:
        pidfd = self._first.open()
        if pidfd is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the container's first process has ended")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            root = os.open(f"/proc/{self._first.pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                guest_socket = _open_inside(root, f"{place}/{SOCKET_NAME}")
            finally:
                os.close(root)
            sock.setblocking(False)
            try:
                sock.connect(f"/proc/self/fd/{guest_socket}")
            finally:
                os.close(guest_socket)
            self._check_peer(sock)
        except BaseException:
            sock.close()
            raise
        finally:
            os.close(pidfd)
        return sock

    def _check_peer(self, sock: socket.socket) -> None:
        """Check that the listener lives in the container, whose files the user can arrange at will."""
        pid, _, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        ours, theirs = (os.stat(f"/proc/{each}/ns/pid") for each in (self._first.pid, pid))
        if (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino):
            raise BoxBroken(f"process {pid}, which is not of the container, answers in place of its guest")


class ApiLane:
    """Connects through an exec of the engine, which runs a relay inside."""

    name = "api"

    def __init__(self, engine: Engine, container: str, bundle: GuestBundle) -> None:
        self._engine = engine
        self._container = container
        self._bundle = bundle

    async def connect(self, place: str, options: bytes | None = None) -> Link:
        wait = ["wait"] if options is not None else []
        argv = self._bundle.argv("hutch.providers.guest_bundle.relay", place, *wait)
        try:
            exec_id = await self._engine.exec_create(self._container, argv, user=RELAY_USER, attached=True)
            stream = await hijack(self._engine.http, exec_id)
        except EngineRefused as refused:
            raise await self._explain(refused) from refused
        link = Link()
        if options is not None:
            stream.send(framed_options(options))
        stream.become(link)
        try:
            await link.wait_for_hello(TIMEOUT if options is not None else 10.0)
        except (BoxBroken, Unavailable) as error:
            stderr = stream.stderr.decode("utf-8", "replace").strip()
            raise await self._explain(error, stderr) from error
        return link

    async def _explain(self, error: HutchError, stderr: str = "") -> HutchError:
        """Return an error that says whether the box has ended or only cannot be reached."""
        found = await self._engine.inspect(self._container)
        state = (found or {}).get("State", {})
        if not state.get("Running") or "no guest at" in stderr:
            return _nobody_listens(self._container, error)
        if state.get("Paused"):
            return Unavailable(f"container {self._container} is paused", op="connect")
        if stderr:
            return Unavailable(f"container {self._container} cannot be entered: {stderr}", op="connect")
        return error


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def _open_inside(root: int, path: str) -> int:
    """Open a path in the container's root without following links, so that no link of the box leads out of it."""
    how = _OpenHow(os.O_PATH | os.O_CLOEXEC, 0, _IN_ROOT | _NO_SYMLINKS | _NO_MAGICLINKS)
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    fd: int = syscall(_OPENAT2, root, path.encode(), ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how)))
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return fd


def _nobody_listens(where: str, error: BaseException) -> Unavailable:
    number = getattr(error, "errno", None)
    details: dict[str, Detail] = {"errno": number if isinstance(number, int) else errno.ECONNREFUSED}
    return Unavailable(f"no guest answers at {where}: {error}", op="connect", details=details)
