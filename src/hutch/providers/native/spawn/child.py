"""The child's side of its initialisation: it performs the spawner's programs (`child_steps`) and serves as a guest.

While it waits, end of file on its socket means that the spawner is gone, and the child ends too. Standard library only.

Names are imported one by one here, and whatever runs in a child has run in the zygote before (`WarmUp`). Code that the
interpreter has specialised no longer writes to the dictionaries it looks names up in, and so does not copy their pages.
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
from hutch.providers.native.spawn.netlink_permits import NetlinkPermits
from hutch.providers.native.spawn.program import Inbox, ProgramWriter, perform, prepare_guest, take_prepared_guest
from hutch.providers.native.spawn.wire import error_message, read_memfd, write_memfd

End = tuple[int, int, int] | None
"""Descriptors at the end of the last program: the guest's options, its keeper, and where its filter asks."""

_inbox = Inbox()
_WARM_UP_TIMEOUT = 1.0
"""Seconds after which a warm-up is given up; it takes about a millisecond."""


class _Failed(Exception):
    """A program failed. The message names the part, and the cause is the reason."""


def run_child() -> NoReturn:
    """Run a child; never returns. Its descriptors are those that `child_steps` numbers; all of them close on exec."""
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
    """The guest, and the descriptor of its connection to the keeper."""
    part = "start"
    try:
        options, keeper, asking = _run_programs(SOCK)
        part = "serve"
        return _guest(options, asking), keeper
    except _Failed as failure:
        _report(str(failure), failure.__cause__ or failure)
    except BaseException as error:
        _report(part, error)
    _exit(1)


def _run_programs(sock: int) -> tuple[int, int, int]:
    """Perform program after program, and return the descriptors that the last one ends with."""
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


def _guest(options_fd: int, asking: int) -> Guest:
    guest = take_prepared_guest()
    if asking >= 0:
        NetlinkPermits(guest.loop, asking)
    guest.begin(Options(**decode(read_memfd(options_fd))))
    return guest


def _report(part: str, error: BaseException) -> None:
    try:
        write(SOCK, encode(error_message(part, error)))
    except OSError:
        return  # the spawner is gone, so nobody reads the report


class WarmUp:
    """Runs a child's code in the zygote: a harmless program, then a guest with a first command.

    Sockets and files are prepared beforehand, so that `perform` does what a child does, and little else.
    """

    def __init__(self) -> None:
        self._spawner, self._child = socketpair(AF_UNIX, SOCK_SEQPACKET)
        self._keeper, theirs = socketpair()
        self._theirs = theirs.detach()
        self._listener = socket(AF_UNIX, SOCK_STREAM)
        self._asking, self._silent = socketpair()
        self._score = open_file("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC)
        self._options = write_memfd(b'{"box_id":"","workdir":"/","env":{"PATH":"/usr/bin:/bin"},"orphan_grace":1.0}')
        self._spawner.send(_harmless_program(self._listener.fileno(), self._score))
        self._keeper.send(frame(REQUEST, 1, b'{"op":"ping"}') + frame(REQUEST, 2, b'{"op":"run","command":["true"]}'))

    def perform(self) -> bool:
        """Run it once, and return whether the command ended."""
        _run_programs(self._child.fileno())
        guest = _guest(self._options, self._asking.fileno())
        guest.add_connection(self._theirs)
        answers: list[bytes] = []

        def heard(_events: int) -> None:
            answers.append(self._keeper.recv(1 << 16))
            if b'"exit_code":' in answers[-1] or b'"errno":' in answers[-1]:
                guest.loop.stop()

        guest.loop.watch(self._keeper.fileno(), READ, heard)
        guest.loop.call_later(_WARM_UP_TIMEOUT, guest.loop.stop)
        guest.run()
        return any(b'"exit_code":' in answer for answer in answers)

    def close(self) -> None:
        """Close our ends. What the guest has opened is left to `kernel.close_from`."""
        for sock in (self._spawner, self._child, self._keeper, self._listener, self._asking, self._silent):
            sock.close()


def _harmless_program(listener: int, score: int) -> bytes:
    writer = ProgramWriter(())
    writer.part("warm up")
    writer.chdir("/")
    writer.call("umask", UMASK, answer=UMASK)
    # The guest must not act as init, which may kill every process it sees: here that would be the whole machine.
    writer.invoke(prepare_guest, listener, None, score, False)
    return writer.to_bytes((0, 0, -1))
