"""How a server is found: its sockets, the lock against a second server, `server.json`, and systemd notification."""

import fcntl
import json
import os
import socket
import time
from pathlib import Path

import hutch
from hutch.config.announcement import ANNOUNCEMENT, read
from hutch.errors import ConfigError, HeldElsewhere
from hutch.logs import log

FIRST_KEY = "first-key"


class Lock:
    """Allows one server for each state directory; the kernel releases the lock with the process."""

    def __init__(self, state_dir: Path) -> None:
        self._fd = os.open(state_dir / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise HeldElsewhere(
                f"another server works on {state_dir}",
                details=read(state_dir),
                remedy="use that one, end it first, or set HUTCH_STATE_DIR",
            ) from None

    def release(self) -> None:
        os.close(self._fd)


def unix_socket(path: Path) -> socket.socket:
    """Bind and listen for this user only; a socket that an earlier server left is replaced, as we hold the lock."""
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listening.bind(str(path))
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"the socket {path} cannot be created: {error}", remedy="choose another: --socket PATH"
        ) from error
    finally:
        os.umask(before)
    listening.listen(1024)
    return listening


def tcp_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the protocol is named; with it on, an answer in two parts waits
    # 40 ms for the client's delayed acknowledgement.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}", remedy="choose another: --host, --port"
        ) from error
    return listening


def announce(state_dir: Path, *, socket_path: Path, url: str) -> None:
    fields = {
        "pid": os.getpid(), "socket": str(socket_path), "url": url, "version": hutch.__version__,
        "started_at": time.time(),
    }  # fmt: skip
    write_private(state_dir / ANNOUNCEMENT, json.dumps(fields) + "\n")


def withdraw(state_dir: Path, socket_path: Path) -> None:
    (state_dir / ANNOUNCEMENT).unlink(missing_ok=True)
    socket_path.unlink(missing_ok=True)


def notify(**fields: str) -> None:
    """Send READY, STOPPING or STATUS to the service manager that set NOTIFY_SOCKET (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
        try:
            # A leading @ stands for the zero byte of an abstract address, unix(7).
            out.connect("\0" + address[1:] if address.startswith("@") else address)
            out.send("\n".join(f"{name.upper()}={value}" for name, value in fields.items()).encode())
        except OSError as error:
            log("server").warning("the service manager cannot be notified", why=str(error), socket=address)


def write_private(path: Path, text: str) -> None:
    """Write a file atomically; it is readable for this user only from the first byte on."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    temporary.rename(path)
