"""A peer's daemon that the bench starts for itself, in a directory and a cgroup of its own, and ends by its pid."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.peers.errors import PeerFailed

TIMEOUT_SECONDS = 60.0
CGROUP = f"/bench-of-hutch-{os.getpid()}"  # `hutch prune` may sweep what is called hutch-…


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """A directory for daemons. At the end their processes, mounts, cgroups and files are gone."""
    # Not /tmp: it may be a tmpfs or an overlay, on which Docker would fall back to a slow storage driver.
    directory = Path(tempfile.mkdtemp(prefix="hutch-bench-", dir="/var/tmp"))
    try:
        yield directory
    finally:
        _end_processes(directory)
        _unmount(directory)
        _remove_cgroups()
        shutil.rmtree(directory)


@contextlib.contextmanager
def daemon(argv: Sequence[str], sock: Path) -> Iterator[None]:
    """Run the program until the block ends; the block begins when the socket exists."""
    # It goes with us even if we are killed; in a session of its own, Ctrl-C reaches us and not it.
    prefix = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    log = sock.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen([*prefix, *argv], stdout=output, stderr=output, start_new_session=True)
    try:
        _await_socket(process, sock, log)
        yield
    finally:
        process.terminate()
        try:
            process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_socket(process: subprocess.Popen[bytes], sock: Path, log: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not sock.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise PeerFailed(f"the daemon did not come up: {' '.join(last)[-300:]}")
        time.sleep(0.05)


def _end_processes(directory: Path) -> None:
    """Podman's monitors outlive an exec by five minutes. Whatever has our random path on its command line is ours."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while left := [pid for pid in _pids() if str(directory).encode() in _command_line(pid)]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise PeerFailed(f"processes do not end: {left}")
        time.sleep(0.05)


def _pids() -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if pid != os.getpid()]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _unmount(directory: Path) -> None:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in reversed([each for each in points if each.startswith(f"{directory}/")]):
        subprocess.run(["umount", "--lazy", point], check=True)


def _remove_cgroups() -> None:
    """Remove the parent group, which engines leave behind in every hierarchy."""
    for mounted in Path("/proc/mounts").read_text().splitlines():
        _, point, kind, *_ = mounted.split()
        if kind not in ("cgroup", "cgroup2"):
            continue
        for path, _, _ in os.walk(point + CGROUP, topdown=False):
            _remove_cgroup(path)


def _remove_cgroup(path: str) -> None:
    """A killed process stays a member for a moment after it has gone from /proc."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            return os.rmdir(path)
        except FileNotFoundError:
            return None
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
