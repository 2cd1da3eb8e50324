"""Programs: lists of system calls with their arguments, which the spawner writes and a child performs.

A child shares its zygote's memory page by page until it writes there, and Python writes to every object it uses. A loop
over a list touches far fewer pages than the functions that wrote the list, so a box needs less memory and is ready
sooner.

The writer knows which number each descriptor of the child will have, because the kernel always assigns the lowest that
is free. The expected result of a call is part of the program, and any other result ends it. Standard library only.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from ctypes import addressof, create_string_buffer
from errno import EMSGSIZE, EPROTO
from itertools import count
from marshal import dumps
from os import O_CLOEXEC, O_CREAT, O_NOFOLLOW, O_TRUNC, O_WRONLY, fsencode
from socket import CMSG_SPACE, MSG_CMSG_CLOEXEC, SCM_RIGHTS, SOL_SOCKET, SocketType
from struct import Struct, pack
from typing import Any

from hutch.guest.main import Guest, GuestContext
from hutch.linux.kernel import (
    AT_FDCWD,
    MOVE_MOUNT_F_EMPTY_PATH,
    MS_BIND,
    NR,
    Call,
    last_error,
    mount_attributes,
    raw_syscall,
)
from hutch.providers.native.layers.adoption import adopt
from hutch.providers.native.rootfs.root import (
    attach_host_mount,
    check_no_link,
    ensure_directory,
    ensure_place,
    open_host_mount,
    open_source,
)
from hutch.providers.native.spawn.prefault import prefault_pages

Step = tuple[int, int | None, tuple[Any, ...]]
"""The index of a function in `_FUNCTIONS`, its expected result, and its arguments."""
Part = tuple[str, tuple[Step, ...]]
"""Steps, and the name under which a failure of one of them is reported."""

_prepared_guests: list[Guest] = []


def prepare_guest(listener: int, spill: int | None, oom: int, is_init: bool) -> None:
    """Make the child's guest before an order comes, so that no order has to wait for it."""
    _prepared_guests.append(Guest(listener, GuestContext(spill, oom, is_init)))


def take_prepared_guest() -> Guest:
    return _prepared_guests.pop()


_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    raw_syscall, ensure_directory, ensure_place, check_no_link, open_source, open_host_mount, attach_host_mount,
    prefault_pages, prepare_guest, adopt,
)  # fmt: skip
_SYSCALL = 0
_MOST_ARGUMENTS = 6

MAX_PROGRAM_BYTES = 1 << 17
MAX_DESCRIPTORS = 253
"""Most descriptors of one message (SCM_MAX_FD). Each layer of an image is one."""
_MESSAGE = Struct("@PIPNPNi")
_RECVMSG = NR.get("recvmsg", -1)  # the module can be imported on an unsupported machine
_CLOSE_ON_EXEC = int(MSG_CMSG_CLOEXEC)
_WRITE_NEW = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW


def perform(steps: tuple[Step, ...]) -> None:
    """Perform the steps in the child. Raises OSError at the first unexpected result."""
    for function, expected, arguments in steps:
        answer = _FUNCTIONS[function](*arguments)
        if answer != expected:
            raise _unexpected(answer, (function, expected, arguments))


def _unexpected(answer: object, step: Step) -> OSError:
    function, expected, arguments = step
    name = _FUNCTIONS[function].__name__
    if function == _SYSCALL:
        name = next(name for name, number in NR.items() if number == arguments[0])
        arguments = tuple(value for value in arguments[1:] if value is not None)
    what = f"{name}({', '.join(map(repr, arguments))})"
    if answer == -1:
        return last_error(what)
    return OSError(EPROTO, f"the answer was {answer} where {expected} was expected", what)


class Inbox:
    """A child's buffer for the next program. It is the zygote's memory, and shared until a program comes."""

    def __init__(self) -> None:
        room = CMSG_SPACE(MAX_DESCRIPTORS * 4)
        self.content = create_string_buffer(MAX_PROGRAM_BYTES)
        self._control = create_string_buffer(room)
        self._buffer = create_string_buffer(pack("@PN", addressof(self.content), MAX_PROGRAM_BYTES))
        # struct msghdr, into which the kernel writes how much of the ancillary buffer it used
        self._head = (0, 0, addressof(self._buffer), 1, addressof(self._control), room, 0)
        self._message = create_string_buffer(_MESSAGE.size)
        self._address = addressof(self._message)

    def receive(self, sock: int) -> int:
        """Wait for a program and its descriptors, and return its size; 0 at end of file."""
        _MESSAGE.pack_into(self._message, 0, *self._head)
        size: int = raw_syscall(_RECVMSG, sock, self._address, _CLOSE_ON_EXEC, None, None, None)
        if size < 0:
            raise last_error("recvmsg")
        return size


def send(sock: SocketType, program: bytes, fds: Sequence[int] = ()) -> None:
    """Send a program to a child, whose descriptors get the numbers that `ProgramWriter.reserve_fds` gave."""
    if len(program) > MAX_PROGRAM_BYTES or len(fds) > MAX_DESCRIPTORS:
        raise OSError(EMSGSIZE, f"a program of {len(program)} bytes and {len(fds)} descriptors is too large")
    sock.sendmsg([program], [(SOL_SOCKET, SCM_RIGHTS, array("i", fds))] if fds else [])


class ProgramWriter:
    """Writes a program. `descriptors` are the numbers that are open in the child when it begins."""

    def __init__(self, descriptors: Iterable[int]) -> None:
        self._open = set(descriptors)
        self._parts: list[tuple[str, list[Step]]] = []

    def to_bytes(self, end: tuple[int, int, int] | bytes | None = None) -> bytes:
        """The program for the child, which reads it with marshal. `end` is the result of the last program, or, as
        bytes, another program that follows."""
        parts: tuple[Any, ...] = tuple((name, tuple(steps)) for name, steps in self._parts)
        return dumps((parts, end))

    def part(self, name: str) -> None:
        """Name the part that the following steps belong to."""
        self._parts.append((name, []))

    def reserve_fds(self, many: int) -> list[int]:
        """Reserve the child's next descriptors, for those that come with the program or that a function opens.

        Descriptors that come with the program are reserved before it opens any others.
        """
        return [self._next() for _ in range(many)]

    def calls(self, calls: Iterable[Call]) -> None:
        for call in calls:
            self.call(*call)

    def call(self, name: str, *arguments: Any, answer: int = 0) -> None:
        padding = (None,) * (_MOST_ARGUMENTS - len(arguments))
        self._add(_SYSCALL, answer, (NR[name], *arguments, *padding))

    def call_fd(self, name: str, *arguments: Any) -> int:
        """Add a call that opens a descriptor, and return its number."""
        number = self._next()
        self.call(name, *arguments, answer=number)
        return number

    def invoke(self, function: Callable[..., None], *arguments: Any) -> None:
        """Add one of `_FUNCTIONS`, where the result of one system call decides about the next."""
        self._add(_FUNCTIONS.index(function), None, arguments)

    def invoke_fd(self, function: Callable[..., int], *arguments: Any) -> int:
        """Add one of `_FUNCTIONS` that opens a descriptor, and return its number."""
        number = self._next()
        self._add(_FUNCTIONS.index(function), number, arguments)
        return number

    def open(self, path: str, flags: int, mode: int = 0) -> int:
        return self.call_fd("openat", AT_FDCWD, fsencode(path), flags | O_CLOEXEC, mode)

    def close(self, number: int) -> None:
        self.call("close", number)
        self._open.remove(number)

    def write(self, path: str, flags: int, content: bytes) -> None:
        fd = self.open(path, flags, 0o644)
        self.call("write", fd, content, len(content), answer=len(content))
        self.close(fd)

    def write_new(self, path: str, text: str) -> None:
        self.write(path, _WRITE_NEW, text.encode())

    def mkdir(self, path: str, mode: int) -> None:
        self.call("mkdirat", AT_FDCWD, fsencode(path), mode)

    def chown(self, path: str, owner: int) -> None:
        self.call("fchownat", AT_FDCWD, fsencode(path), owner, owner, 0)

    def chdir(self, path: str) -> None:
        self.call("chdir", fsencode(path))

    def mount(self, source: str | None, target: str, kind: str | None, flags: int, options: str | None) -> None:
        texts = [fsencode(text) if text is not None else None for text in (source, target, kind, options)]
        self.call("mount", *texts[:3], flags, texts[3])

    def bind(self, source: str, target: str) -> None:
        self.mount(source, target, None, MS_BIND, None)

    def attach(self, tree: int, path: str) -> None:
        """Attach a detached mount, and close its descriptor."""
        self.call("move_mount", tree, b"", AT_FDCWD, fsencode(path), MOVE_MOUNT_F_EMPTY_PATH)
        self.close(tree)

    def set_mount(self, directory: int, path: str, flags: int, *, add: int = 0, remove: int = 0) -> None:
        """Change attributes of a mount (mount_setattr(2))."""
        attributes = mount_attributes(add, remove)
        self.call("mount_setattr", directory, fsencode(path), flags, attributes, len(attributes))

    def _next(self) -> int:
        number = next(number for number in count() if number not in self._open)
        self._open.add(number)
        return number

    def _add(self, function: int, answer: int | None, arguments: tuple[Any, ...]) -> None:
        self._parts[-1][1].append((function, answer, arguments))
