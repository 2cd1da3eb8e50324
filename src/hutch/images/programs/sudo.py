#!/usr/bin/python3 -I
"""`sudo` of the base images: runs a command as the box's root, without a password. Standard library only.

No program in a box gains rights by itself: its files are mounted nosuid, and every process has no_new_privs. So a
second copy of this program runs as root (`sudo --serve`), which the server starts for callers who may act as root. It
runs the commands of the others on their input and output, in their directory, and reports how they ended.
"""

import array
import json
import os
import pwd
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from typing import Any, NoReturn

PLACE = "/run/hutch-sudo"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
WAIT_SECONDS = 5.0
MAX_REQUEST = 4 << 20
KEPT = ("TERM", "LANG", "LC_ALL", "DISPLAY", "TZ", "COLORTERM")
WITHOUT_VALUE = {"-n", "-S", "-H", "-k", "-b", "-A", "-B", "-P", "--non-interactive", "--stdin", "--set-home"}
STATUS = struct.Struct("!i")
LENGTH = struct.Struct("!I")


def main(arguments: list[str]) -> int:
    if arguments == ["--serve"]:
        serve()
    user, whole_environment, command, variables = parse(arguments)
    account = pwd.getpwnam(user)
    names = os.environ if whole_environment else KEPT
    environ = {name: os.environ[name] for name in names if name in os.environ}
    environ |= {"HOME": account.pw_dir, "USER": user, "LOGNAME": user, "SHELL": account.pw_shell or "/bin/sh"}
    environ |= {"PATH": PATH, "SUDO_USER": pwd.getpwuid(os.getuid()).pw_name, **variables}
    request = {"command": command or [environ["SHELL"]], "env": environ, "cwd": os.getcwd(), "user": user}
    return ask(json.dumps(request).encode())


def parse(arguments: list[str]) -> tuple[str, bool, list[str], dict[str, str]]:
    """Return the user, whether the environment is kept, the command and the variables that are set for it."""
    user, kept = "root", False
    variables: dict[str, str] = {}
    while arguments:
        word = arguments[0]
        if word == "--":
            arguments = arguments[1:]
            break
        if word in ("-u", "--user") and len(arguments) > 1:
            user, arguments = arguments[1], arguments[2:]
        elif word in ("-E", "--preserve-env") or word.startswith("--preserve-env="):
            kept, arguments = True, arguments[1:]
        elif word in ("-i", "-s", "--login", "--shell") or word in WITHOUT_VALUE:
            arguments = arguments[1:]
        elif word in ("-v", "-l", "--validate", "--list"):
            return user, kept, ["true"], variables
        elif word.startswith("-"):
            fail(f"the option {word} is not known here", 2)
        elif "=" in word.partition("/")[0]:
            name, _, variables[name] = word.partition("=")
            arguments = arguments[1:]
        else:
            break
    return user, kept, arguments, variables


def ask(request: bytes) -> int:
    """Have the copy that is root run it; pass signals on, and return how it ended."""
    connection = connect()
    descriptors = array.array("i", [0, 1, 2])
    connection.sendmsg([LENGTH.pack(len(request))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    connection.sendall(request)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda got, _: connection.send(bytes([got])))
    answer = received(connection, STATUS.size)
    if len(answer) < STATUS.size:
        fail("root's part of sudo has ended")
    status: int = STATUS.unpack(answer)[0]
    return status


def connect() -> socket.socket:
    end = time.monotonic() + WAIT_SECONDS
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(PLACE)
            return connection
        except OSError:
            connection.close()
            if time.monotonic() > end:
                fail("nobody gives root's rights here: does this key allow it? user='root' of a call needs the same")
            time.sleep(0.05)


def fail(text: str, code: int = 1) -> NoReturn:
    sys.stderr.write(f"sudo: {text}\n")
    sys.exit(code)


def received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            break
        data += piece
    return data


# --- the copy that is root ------------------------------------------------------------------------------------


def serve() -> NoReturn:
    """Run commands for every process that connects, until the box ends. A second copy leaves the place to the first."""
    with socket.socket(socket.AF_UNIX) as other:
        if other.connect_ex(PLACE) == 0:
            sys.exit(0)
    if os.path.exists(PLACE):
        os.unlink(PLACE)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    server = socket.socket(socket.AF_UNIX)
    server.bind(PLACE)
    os.chmod(PLACE, 0o666)
    server.listen(64)
    while True:
        connection, _ = server.accept()
        if os.fork() == 0:
            server.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                answer(connection)
            finally:
                os._exit(0)
        connection.close()


def answer(connection: socket.socket) -> None:
    head, ancillary, _, _ = connection.recvmsg(LENGTH.size, socket.CMSG_SPACE(3 * 4))
    descriptors: array.array[int] = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    (size,) = LENGTH.unpack(head)
    if len(descriptors) != 3 or size > MAX_REQUEST:
        return
    request = json.loads(received(connection, size))
    pid = os.fork()
    if pid == 0:
        connection.close()
        become(request, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    connection.send(STATUS.pack(wait(connection, pid)))


def become(request: dict[str, Any], descriptors: "array.array[int]") -> NoReturn:
    """Become the command; never returns."""
    code = 126
    try:
        os.setsid()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        os.chdir(request["cwd"])
        account = pwd.getpwnam(request["user"])
        if account.pw_uid != 0:
            os.initgroups(account.pw_name, account.pw_gid)
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
        code = 127
        os.execvpe(request["command"][0], request["command"], request["env"])
    except Exception as error:  # The end of the process: there is nobody else to tell.
        os.write(2, f"sudo: {request['command'][0]}: {error}\n".encode())
    os._exit(code)


def wait(connection: socket.socket, pid: int) -> int:
    """Wait for the command. Bytes of its caller are signals for it, and a caller who leaves ends it."""
    ended = os.pidfd_open(pid)
    while True:
        ready, _, _ = select.select([connection.fileno(), ended], [], [])
        if ended in ready:
            _, status = os.waitpid(pid, 0)
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        got = connection.recv(1)
        with suppress(ProcessLookupError):
            os.killpg(pid, got[0] if got else signal.SIGKILL)
        if not got:
            os.waitpid(pid, 0)
            os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
