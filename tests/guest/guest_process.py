"""A real guest in a process of its own, outside any box, for tests of jobs, links and files."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from hutch.model.ids import BoxId
from hutch.model.limits import Limits
from hutch.model.spec import EffectiveSpec, NetworkMode, Retention, Workspace
from hutch.providers.base import InstanceRecord
from hutch.providers.guest_client.instance import GuestInstance
from hutch.providers.guest_client.link import Link
from hutch.providers.guest_client.verdicts import Counters, CounterSource

_BODY = """
import json, os, resource, socket, sys
from hutch.guest.main import GuestContext, Options, serve
listener, spill, options = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
if options.pop("no_processes", False):
    if os.getuid() == 0:  # whom the limit does not bind
        os.setresuid(65534, 65534, 65534)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
name = options.pop("box_name", "box")
score = os.open("/proc/self/oom_score_adj", os.O_RDWR) if options.pop("victims", False) else None
context = GuestContext(None if spill < 0 else spill, score)
serve(socket.socket(fileno=listener), Options(name, **options), context)
"""
TIMEOUT = 30.0


class GuestProcess:
    """A running guest with its socket and its directories."""

    def __init__(self, directory: Path, process: "subprocess.Popen[bytes]") -> None:
        self.directory = directory
        self.process = process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def path(self) -> Path:
        return self.directory / "guest"

    @property
    def workdir(self) -> Path:
        return self.directory / "workspace"

    @property
    def spill(self) -> Path:
        return self.directory / "spill"

    def descriptors(self) -> list[str]:
        return os.listdir(f"/proc/{self.pid}/fd")

    def children(self) -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    @contextlib.asynccontextmanager
    async def link(self) -> AsyncIterator[Link]:
        link = await Link.connect(self.path, timeout=TIMEOUT)
        try:
            yield link
        finally:
            link.close()


@contextlib.contextmanager
def running_guest(*, spilling: bool = True, **options: Any) -> Iterator[GuestProcess]:
    """Start a guest directly under /tmp, because a Unix socket's path has 108 bytes. It also ends by itself."""
    with tempfile.TemporaryDirectory(prefix="hg-", dir="/tmp") as name:
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "workspace").mkdir()
        (directory / "spill").mkdir()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(directory / "guest"))
            listener.listen(16)
            spill = os.open(directory / "spill", os.O_RDONLY | os.O_DIRECTORY) if spilling else -1
            guest_options = {
                "workdir": str(directory / "workspace"),
                "env": {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": name},
                "orphan_grace": 60.0,
                **options,
            }
            process = subprocess.Popen(
                [sys.executable, "-c", _BODY, str(listener.fileno()), str(spill), json.dumps(guest_options)],
                pass_fds=[fd for fd in (listener.fileno(), spill) if fd >= 0],
                stdin=subprocess.DEVNULL,
            )
            if spill >= 0:
                os.close(spill)
        guest = GuestProcess(directory, process)
        try:
            yield guest
        finally:
            _end(guest)


def _end(guest: GuestProcess) -> None:
    """Kill the guest's children and the guest, which would otherwise start more."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for child in guest.children():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, 9)
    guest.process.kill()
    guest.process.wait()


async def until(condition: Callable[[], bool]) -> None:
    """Poll until the condition holds; a slow machine may take up to TIMEOUT seconds."""
    async with asyncio.timeout(TIMEOUT):
        while not condition():
            await asyncio.sleep(0.01)


class NoCounters:
    """Counters of an engine that counts nothing."""

    def read(self) -> Counters:
        return Counters()


LIMITS = Limits(cpus=1.0, memory_mb=512, pids=64, disk_mb=256, open_files=1024, timeout_sec=60.0, max_timeout_sec=600.0)
SPEC = EffectiveSpec(
    profile="default", provider="linked", image="host", workspace=Workspace(), workdir="/workspace", user="user",
    mounts=(), env={}, secrets={}, network=NetworkMode.OFF, allow_private=(), limits=LIMITS, read_only_root=True,
    retention=Retention.TEMPORARY, idle_timeout_sec=0, ttl_sec=0, labels={}, ports=(), name="",
)  # fmt: skip


@contextlib.asynccontextmanager
async def instance_of(
    guest: GuestProcess, facts: CounterSource | None = None, **more: Any
) -> AsyncIterator[GuestInstance]:
    record = InstanceRecord(provider="linked", box_id=BoxId("box"), keeper="test")
    made = GuestInstance(record, SPEC, lambda: Link.connect(guest.path), facts or NoCounters(), **more)
    try:
        yield made
    finally:
        await made.close()
