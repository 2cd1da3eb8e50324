"""Programs: kernel calls with their arguments, written by the spawner, performed by the child that becomes a box.

A child shares its zygote's memory page by page until it writes there, and Python writes to whatever it looks at. A
loop over a list touches far fewer pages than the functions that wrote the list, so that a box needs less memory and is
ready sooner.

A writer knows which number each descriptor of the child will have, because the kernel always gives the lowest that is
free. What a call must answer is part of the program, and any other answer ends it. Standard library only.
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
    mount_attributes,
    raw_syscall,
    refused,
)
from hutch.providers.native.rootfs.root import (
    attach_extra,
    check_no_link,
    ensure_directory,
    ensure_place,
    open_extra,
    open_source,
)
from hutch.providers.native.spawn.prefault import touch

Step = tuple[int, int | None, tuple[Any, ...]]
"""Which of `_FUNCTIONS`, what it must answer, and its arguments."""
Part = tuple[str, tuple[Step, ...]]
"""Steps, and in words what they are for: told when one of them fails."""

_prepared_guests: list[Guest] = []


def prepare_guest(listener: int, spill: int | None, oom: int, is_init: bool) -> None:
    """Make the child's guest before an order comes, so that no order has to wait for it."""
    _prepared_guests.append(Guest(listener, GuestContext(spill, oom, is_init)))


def take_prepared_guest() -> Guest:
    return _prepared_guests.pop()


_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    raw_syscall, ensure_directory, ensure_place, check_no_link, open_source, open_extra, attach_extra, touch,
    prepare_guest,
)  # fmt: skip
_SYSCALL = 0
_MOST_ARGUMENTS = 6

LARGEST = 1 << 17
MOST_DESCRIPTORS = 253
"""Of one message (SCM_MAX_FD). Each layer of an image is one."""
_MESSAGE = Struct("@PIPNPNi")
_RECVMSG = NR.get("recvmsg", -1)  # on a machine that is none of ours this can be imported
_CLOSE_ON_EXEC = int(MSG_CMSG_CLOEXEC)
_WRITE_ANEW = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW


def perform(steps: tuple[Step, ...]) -> None:
    """In the child. Raises OSError at the first answer that was not foreseen."""
    for function, foreseen, arguments in steps:
        answer = _FUNCTIONS[function](*arguments)
        if answer != foreseen:
            raise _surprise(answer, (function, foreseen, arguments))


def _surprise(answer: object, step: Step) -> OSError:
    function, foreseen, arguments = step
    name = _FUNCTIONS[function].__name__
    if function == _SYSCALL:
        name = next(name for name, number in NR.items() if number == arguments[0])
        arguments = tuple(value for value in arguments[1:] if value is not None)
    what = f"{name}({', '.join(map(repr, arguments))})"
    if answer == -1:
        return refused(what)
    return OSError(EPROTO, f"the answer was {answer} where {foreseen} was foreseen", what)


class Inbox:
    """A child's place for the next program. Its memory is the zygote's, and shared until one comes."""

    def __init__(self) -> None:
        room = CMSG_SPACE(MOST_DESCRIPTORS * 4)
        self.content = create_string_buffer(LARGEST)
        self._control = create_string_buffer(room)
        self._buffer = create_string_buffer(pack("@PN", addressof(self.content), LARGEST))
        # struct msghdr, into which the kernel writes how much of the room was needed
        self._head = (0, 0, addressof(self._buffer), 1, addressof(self._control), room, 0)
        self._message = create_string_buffer(_MESSAGE.size)
        self._address = addressof(self._message)

    def receive(self, sock: int) -> int:
        """Wait for a program and the descriptors that it needs; 0: nobody is there to send one."""
        _MESSAGE.pack_into(self._message, 0, *self._head)
        size: int = raw_syscall(_RECVMSG, sock, self._address, _CLOSE_ON_EXEC, None, None, None)
        if size < 0:
            raise refused("recvmsg")
        return size


def send(sock: SocketType, program: bytes, fds: Sequence[int] = ()) -> None:
    """To a child, whose descriptors will have the numbers that `Writer.foresee` gave."""
    if len(program) > LARGEST or len(fds) > MOST_DESCRIPTORS:
        raise OSError(EMSGSIZE, f"a program of {len(program)} bytes and {len(fds)} descriptors is too large")
    sock.sendmsg([program], [(SOL_SOCKET, SCM_RIGHTS, array("i", fds))] if fds else [])


class Writer:
    """Writes a program. `descriptors` are the numbers that are open when it begins."""

    def __init__(self, descriptors: Iterable[int]) -> None:
        self._open = set(descriptors)
        self._parts: list[tuple[str, list[Step]]] = []

    def written(self, end: tuple[int, int, int] | bytes | None = None) -> bytes:
        """For the child, which reads it with marshal; `end` comes with the last of its programs. Bytes are another
        program, to go on with."""
        parts: tuple[Any, ...] = tuple((name, tuple(steps)) for name, steps in self._parts)
        return dumps((parts, end))

    def part(self, name: str) -> None:
        """What the following steps are for."""
        self._parts.append((name, []))

    def foresee(self, many: int) -> list[int]:
        """The child's next descriptors: those that come with the program, which is to say so before it opens any
        others, or those that one of our functions opens."""
        return [self._next() for _ in range(many)]

    def make(self, calls: Iterable[Call]) -> None:
        for call in calls:
            self.call(*call)

    def call(self, name: str, *arguments: Any, answer: int = 0) -> None:
        padding = (None,) * (_MOST_ARGUMENTS - len(arguments))
        self._add(_SYSCALL, answer, (NR[name], *arguments, *padding))

    def opening(self, name: str, *arguments: Any) -> int:
        """A call that gives a descriptor; returns its number."""
        number = self._next()
        self.call(name, *arguments, answer=number)
        return number

    def ask(self, function: Callable[..., None], *arguments: Any) -> None:
        """One of ours, where a call's answer decides about the next."""
        self._add(_FUNCTIONS.index(function), None, arguments)

    def asking(self, function: Callable[..., int], *arguments: Any) -> int:
        """One of ours that gives a descriptor."""
        number = self._next()
        self._add(_FUNCTIONS.index(function), number, arguments)
        return number

    def open(self, path: str, flags: int, mode: int = 0) -> int:
        return self.opening("openat", AT_FDCWD, fsencode(path), flags | O_CLOEXEC, mode)

    def close(self, number: int) -> None:
        self.call("close", number)
        self._open.remove(number)

    def write(self, path: str, flags: int, content: bytes) -> None:
        fd = self.open(path, flags, 0o644)
        self.call("write", fd, content, len(content), answer=len(content))
        self.close(fd)

    def write_anew(self, path: str, text: str) -> None:
        self.write(path, _WRITE_ANEW, text.encode())

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
        """Mount a detached tree, and let go of it."""
        self.call("move_mount", tree, b"", AT_FDCWD, fsencode(path), MOVE_MOUNT_F_EMPTY_PATH)
        self.close(tree)

    def set_mount(self, directory: int, path: str, flags: int, *, add: int = 0, remove: int = 0) -> None:
        """mount_setattr(2)."""
        attributes = mount_attributes(add, remove)
        self.call("mount_setattr", directory, fsencode(path), flags, attributes, len(attributes))

    def _next(self) -> int:
        number = next(number for number in count() if number not in self._open)
        self._open.add(number)
        return number

    def _add(self, function: int, answer: int | None, arguments: tuple[Any, ...]) -> None:
        self._parts[-1][1].append((function, answer, arguments))
