"""The child's side of a birth: perform what the spawner has written (`stages`), and serve.

While it waits, end of file on its socket means that the spawner is gone, and it ends too. Standard library only.

Here names are imported one by one, and whatever runs in a child has run in the zygote before (`rehearse`): code that
the interpreter has specialised no longer writes to the objects it finds its names by, and so not to their pages.
"""

from ctypes import Array, c_char
from marshal import loads
from os import O_CLOEXEC, O_RDWR, _exit, close, write
from os import open as open_file
from socket import AF_UNIX, SOCK_SEQPACKET, SOCK_STREAM, socket, socketpair
from typing import NoReturn

from hutch.guest.loop import READ
from hutch.guest.main import Guest, Options
from hutch.guest.protocol import REQUEST, decode, encode, frame
from hutch.providers.native.rootfs.build import UMASK
from hutch.providers.native.spawn.child_steps import SOCK
from hutch.providers.native.spawn.netlink_permits import Permits
from hutch.providers.native.spawn.program import Inbox, Writer, perform, prepare_guest, take_prepared_guest
from hutch.providers.native.spawn.wire import sealed, told, unsealed

End = tuple[int, int, int] | None
"""What the last program ends with, as descriptors: the guest's options, its keeper, and where its filter asks."""

_inbox = Inbox()
_PATIENCE = 1.0
"""Seconds after which a rehearsal is broken off; one takes a millisecond."""


class _Failed(Exception):
    """In which part of a program; the cause is the reason."""


def live() -> NoReturn:
    """Never returns. Its descriptors are those that `stages` numbers; all of them close on exec."""
    try:
        guest, keeper = _become_guest()
        write(SOCK, b'{"ready":true}')
        close(SOCK)
        guest.add_connection(keeper)
        while True:
            guest.run()
    finally:
        _exit(1)


def _become_guest() -> tuple[Guest, int]:
    """The guest, and the keeper that is connected already."""
    part = "start"
    try:
        options, keeper, asking = _grow_up(SOCK)
        part = "serve"
        return _guest(options, asking), keeper
    except _Failed as failure:
        _report(str(failure), failure.__cause__ or failure)
    except BaseException as error:
        _report(part, error)
    _exit(1)


def _grow_up(sock: int) -> tuple[int, int, int]:
    """Perform program after program; what comes with the last one: the descriptors of an order, and of its filter."""
    end: End = None
    while end is None:
        if not _inbox.receive(sock):
            _exit(0)
        end = _perform(_inbox.content)
    return end


def _perform(program: "Array[c_char] | bytes") -> End:
    parts, end = loads(program)
    for part, steps in parts:
        try:
            perform(steps)
        except Exception as error:
            raise _Failed(part) from error
    return _perform(end) if isinstance(end, bytes) else end


def _guest(told_in: int, asking: int) -> Guest:
    guest = take_prepared_guest()
    if asking >= 0:
        Permits(guest.loop, asking)
    guest.begin(Options(**decode(unsealed(told_in))))
    return guest


def _report(part: str, error: BaseException) -> None:
    try:
        write(SOCK, encode(told(part, error)))
    except OSError:
        return  # the spawner is gone, and with it whoever would have wanted to know


class Rehearsal:
    """What an order and the first requests will ask for, in the process that children are cloned from.

    The stage is set beforehand, so that `perform` does what a child does, and little else.
    """

    def __init__(self) -> None:
        self._spawner, self._child = socketpair(AF_UNIX, SOCK_SEQPACKET)
        self._keeper, theirs = socketpair()
        self._theirs = theirs.detach()
        self._listener = socket(AF_UNIX, SOCK_STREAM)
        self._asking, self._silent = socketpair()
        self._score = open_file("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC)
        self._options = sealed(b'{"box_id":"","workdir":"/","env":{"PATH":"/usr/bin:/bin"},"orphan_grace":1.0}')
        self._spawner.send(_harmless(self._listener.fileno(), self._score))
        self._keeper.send(frame(REQUEST, 1, b'{"op":"ping"}') + frame(REQUEST, 2, b'{"op":"run","command":["true"]}'))

    def perform(self) -> bool:
        """False: it did not come to its end."""
        _grow_up(self._child.fileno())
        guest = _guest(self._options, self._asking.fileno())
        guest.add_connection(self._theirs)
        answers: list[bytes] = []

        def heard(_events: int) -> None:
            answers.append(self._keeper.recv(1 << 16))
            if b'"exit_code":' in answers[-1] or b'"errno":' in answers[-1]:
                guest.loop.stop()

        guest.loop.watch(self._keeper.fileno(), READ, heard)
        guest.loop.call_later(_PATIENCE, guest.loop.stop)
        guest.run()
        return any(b'"exit_code":' in answer for answer in answers)

    def close(self) -> None:
        """What the guest has opened is left to `kernel.close_from`."""
        for sock in (self._spawner, self._child, self._keeper, self._listener, self._asking, self._silent):
            sock.close()


def _harmless(listener: int, score: int) -> bytes:
    writer = Writer(())
    writer.part("rehearse")
    writer.chdir("/")
    writer.call("umask", UMASK, answer=UMASK)
    # Never as init: that one may kill everybody it sees, and here that would be the machine.
    writer.ask(prepare_guest, listener, None, score, False)
    return writer.written((0, 0, -1))
