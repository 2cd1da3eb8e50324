"""Starting a process: one posix_spawn, which is a vfork; the guest has no privilege that must be dropped first.

`posix_spawn` knows no working directory, so the guest goes there itself and returns: it has one thread and uses no
relative path of its own.
"""

import errno
import fcntl
import os
import signal
import stat
import struct
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress

from hutch.guest.files.paths import AT_FDCWD, DIRECTORY, open_at
from hutch.guest.operations import Failure
from hutch.guest.processes import processes

Actions = Sequence[tuple[object, ...]]

# What Python or `serve` ignores would stay ignored across exec: a shell pipeline needs its SIGPIPE.
_DEFAULT_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGPIPE,
    signal.SIGTERM,
    signal.SIGCHLD,
    signal.SIGXFSZ,
)
VICTIM = b"800"
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class OomScore:
    """Children inherit the score of the moment they are started: when memory runs out they go, not the guest."""

    __slots__ = ("_fd", "_own")

    def __init__(self, fd: int | None) -> None:
        """`fd`: the guest's own oom_score_adj, open for reading and writing; None: everybody keeps what they have."""
        self._fd = fd
        # Not always 0: a service manager may have raised it, and nobody unprivileged may go below that again.
        self._own = os.pread(fd, 16, 0).strip() if fd is not None else b""

    def raise_for_child(self) -> None:
        if self._fd is not None and int(self._own) < int(VICTIM):
            os.pwrite(self._fd, VICTIM, 0)

    def restore(self) -> None:
        if self._fd is not None and int(self._own) < int(VICTIM):
            os.pwrite(self._fd, self._own, 0)


def spawn(argv: Sequence[str], env: Mapping[bytes, bytes], cwd: str, actions: Actions, score: OomScore) -> int:
    """The pid of a new session's leader; a Failure `not_runnable` says what was wrong, with the kernel's reason."""
    try:
        _go(cwd)
    except OSError as error:
        raise _not_runnable(error, "cwd", f"cannot work in {cwd!r}") from error
    except ValueError as error:
        raise _impossible("cwd", f"cannot work in {cwd!r}: {error}") from error
    try:
        program = find_program(argv[0], env)
        score.raise_for_child()
        return os.posix_spawn(
            os.fsencode(program),
            [os.fsencode(argument) for argument in argv],
            env,
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=_DEFAULT_SIGNALS,
        )
    except OSError as error:
        what = {errno.E2BIG: "arguments", errno.EAGAIN: "process", errno.ENOMEM: "process"}.get(error.errno or 0)
        raise _not_runnable(error, what or "program", f"cannot run {argv[0][:200]!r}") from error
    except ValueError as error:
        raise _impossible("arguments", f"cannot run {argv[0][:200]!r}: {error}") from error
    finally:
        score.restore()
        os.chdir("/")


def _go(path: str) -> None:
    """Never through a magic link: /proc/self/fd leads to the descriptors of the guest, one of a host directory."""
    directory = open_at(AT_FDCWD, path, DIRECTORY)
    try:
        os.fchdir(directory)
    finally:
        os.close(directory)


def find_program(name: str, env: Mapping[bytes, bytes]) -> str:
    """Search the command's own PATH, as a shell would; one failed vfork for each directory would be dear."""
    if "/" in name:
        return name
    denied = False
    for directory in os.fsdecode(env.get(b"PATH", b"") or _DEFAULT_PATH.encode()).split(":"):
        candidate = f"{directory or '.'}/{name}"
        try:
            # The guest's own /proc/self is not the command's: through it PATH would ask about files of the host.
            file = open_at(AT_FDCWD, candidate, os.O_PATH)
        except OSError:
            continue
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                continue
        finally:
            os.close(file)
        if os.access(candidate, os.X_OK):
            return candidate
        denied = True
    number = errno.EACCES if denied else errno.ENOENT
    raise OSError(number, os.strerror(number))


def _not_runnable(error: OSError, what: str, message: str) -> Failure:
    number = error.errno or 0
    name = errno.errorcode.get(number, str(number))
    return Failure("not_runnable", f"{message}: {os.strerror(number)}", errno=name, what=what)


def _impossible(what: str, message: str) -> Failure:
    """A text that no kernel could be given: a NUL byte, an environment name with `=`."""
    return Failure("not_runnable", message, errno="EINVAL", what=what)


def environment(base: Mapping[bytes, bytes], asked: Mapping[str, str] | None) -> Mapping[bytes, bytes]:
    if not asked:
        return base
    merged = dict(base)
    for name, value in asked.items():
        merged[os.fsencode(name)] = os.fsencode(value)
    return merged


def find_shell() -> str:
    for path in ("/bin/bash", "/usr/bin/bash", "/bin/sh"):
        if os.access(path, os.X_OK):
            return path
    return "/bin/sh"


def kill_session(leader: int) -> None:
    """End the group at once, then what formed groups of its own in the session; a few rounds catch late forks."""
    with suppress(OSError):
        os.killpg(leader, signal.SIGKILL)
    for _ in range(4):
        members = [process.pid for process in processes() if process.session == leader]
        for pid in members:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if len(members) <= 1:
            return


_TERMINAL_SIZE = struct.Struct("HHHH")


def open_terminal(rows: int, cols: int) -> tuple[int, int]:
    """Master (not blocking) and slave, neither the guest's own controlling terminal."""
    master, slave = os.openpty()
    try:
        os.set_blocking(master, False)
        resize_terminal(master, rows, cols)
    except (OSError, struct.error):
        os.close(master)
        os.close(slave)
        raise
    return master, slave


def resize_terminal(master: int, rows: int, cols: int) -> None:
    """The kernel sends SIGWINCH to the foreground process group."""
    fcntl.ioctl(master, termios.TIOCSWINSZ, _TERMINAL_SIZE.pack(rows, cols, 0, 0))


def terminal_actions(slave: int) -> list[tuple[int, ...] | tuple[int, int, str, int, int]]:
    """posix_spawn runs them after setsid: a session leader that opens a terminal gets it as its own, tty_ioctl(4)."""
    return [
        (os.POSIX_SPAWN_OPEN, 0, os.ttyname(slave), os.O_RDWR, 0),
        (os.POSIX_SPAWN_DUP2, 0, 1),
        (os.POSIX_SPAWN_DUP2, 0, 2),
    ]
