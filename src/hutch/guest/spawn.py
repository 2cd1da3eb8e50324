"""Starting a process with posix_spawn, which uses vfork; the guest has no privilege that it would have to drop first.

`posix_spawn` cannot set a working directory, so the guest changes to it and back: it has one thread and uses no
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

# Signals that Python or `serve` ignores would stay ignored across exec, but a shell pipeline needs its SIGPIPE.
_DEFAULT_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGPIPE,
    signal.SIGTERM,
    signal.SIGCHLD,
    signal.SIGXFSZ,
)
CHILD_OOM_SCORE = b"800"
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TERMINAL_SIZE = struct.Struct("HHHH")


class OomScore:
    """Raises the OOM score while a child is started; children inherit it, so the kernel kills them before the guest."""

    __slots__ = ("_fd", "_own")

    def __init__(self, fd: int | None) -> None:
        """`fd` is the guest's own oom_score_adj, open for reading and writing; None leaves every score as it is."""
        self._fd = fd
        # It is not always 0: a service manager may have raised it, and an unprivileged process cannot lower it again.
        self._own = os.pread(fd, 16, 0).strip() if fd is not None else b""

    def raise_for_child(self) -> None:
        if self._fd is not None and int(self._own) < int(CHILD_OOM_SCORE):
            os.pwrite(self._fd, CHILD_OOM_SCORE, 0)

    def restore(self) -> None:
        if self._fd is not None and int(self._own) < int(CHILD_OOM_SCORE):
            os.pwrite(self._fd, self._own, 0)


def spawn(argv: Sequence[str], env: Mapping[bytes, bytes], cwd: str, actions: Actions, score: OomScore) -> int:
    """Start a session leader and return its pid; a Failure `not_runnable` carries the kernel's reason."""
    try:
        _change_directory(cwd)
    except OSError as error:
        raise _not_runnable(error, "cwd", f"cannot work in {cwd!r}") from error
    except ValueError as error:
        raise _invalid("cwd", f"cannot work in {cwd!r}: {error}") from error
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
        raise _invalid("arguments", f"cannot run {argv[0][:200]!r}: {error}") from error
    finally:
        score.restore()
        os.chdir("/")


def _change_directory(path: str) -> None:
    """Enter a directory, but never through a magic link: /proc/self/fd leads to the guest's own host directory."""
    directory = open_at(AT_FDCWD, path, DIRECTORY)
    try:
        os.fchdir(directory)
    finally:
        os.close(directory)


def find_program(name: str, env: Mapping[bytes, bytes]) -> str:
    """Search the command's own PATH as a shell does, because a failed vfork for each directory would be slow."""
    if "/" in name:
        return name
    denied = False
    for directory in os.fsdecode(env.get(b"PATH", b"") or _DEFAULT_PATH.encode()).split(":"):
        candidate = f"{directory or '.'}/{name}"
        try:
            # The guest's /proc/self is not the command's: through it, PATH could probe files of the host.
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


def _invalid(what: str, message: str) -> Failure:
    """A failure for text that execve cannot take: a NUL byte, or an environment name with `=`."""
    return Failure("not_runnable", message, errno="EINVAL", what=what)


def environment(base: Mapping[bytes, bytes], extra: Mapping[str, str] | None) -> Mapping[bytes, bytes]:
    if not extra:
        return base
    merged = dict(base)
    for name, value in extra.items():
        merged[os.fsencode(name)] = os.fsencode(value)
    return merged


def find_shell() -> str:
    for path in ("/bin/bash", "/usr/bin/bash", "/bin/sh"):
        if os.access(path, os.X_OK):
            return path
    return "/bin/sh"


def kill_session(leader: int) -> None:
    """Kill the process group, then processes of the session with groups of their own; a few rounds catch late forks."""
    with suppress(OSError):
        os.killpg(leader, signal.SIGKILL)
    for _ in range(4):
        members = [process.pid for process in processes() if process.session == leader]
        for pid in members:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if len(members) <= 1:
            return


def open_terminal(rows: int, cols: int) -> tuple[int, int]:
    """Return a non-blocking master and a slave; neither becomes the guest's own controlling terminal."""
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
    """Set the size; the kernel then sends SIGWINCH to the foreground process group."""
    fcntl.ioctl(master, termios.TIOCSWINSZ, _TERMINAL_SIZE.pack(rows, cols, 0, 0))


def terminal_actions(slave: int) -> list[tuple[int, ...] | tuple[int, int, str, int, int]]:
    """File actions for posix_spawn after setsid: a session leader that opens a terminal controls it, tty_ioctl(4)."""
    return [
        (os.POSIX_SPAWN_OPEN, 0, os.ttyname(slave), os.O_RDWR, 0),
        (os.POSIX_SPAWN_DUP2, 0, 1),
        (os.POSIX_SPAWN_DUP2, 0, 2),
    ]
