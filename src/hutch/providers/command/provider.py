"""`CommandProvider`: an engine that is one command line. The guest, its files and finding boxes again are done here.

A subclass says what it can do (`claims`) and how its program is started (`command`), from the list of what a box shows
(`jail_spec.jail_entries`). Everything of a box is below one directory that has its name: its record, its socket and the
log of its program.
"""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import zlib
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from hutch.errors import EngineError, HutchError, NotFound, Unavailable, Unsupported
from hutch.linux import process_trees, seccomp
from hutch.linux.processes import Identity
from hutch.model.capabilities import Capabilities
from hutch.model.ids import new_box_id
from hutch.model.limits import Limits
from hutch.model.spec import EffectiveSpec, NetworkMode, Order, Retention, Workspace
from hutch.providers.base import Command, InstanceRecord, Provider
from hutch.providers.command import jail_spec, mounts
from hutch.providers.command.instance import CommandInstance, WatchdogCounters, connect_to_guest
from hutch.providers.command.jail_spec import BoxParameters
from hutch.providers.command.shared_files import SharedFiles
from hutch.providers.guest_bundle.counters import BoxCounters
from hutch.providers.guest_bundle.listener import GUEST_DIR, framed_options
from hutch.providers.guest_client.link import Link

_TIMEOUT = 20.0
_FIRST_ID = 0x70000000
"""The first host id for the users of boxes, where we are root: far above the ids that people and engines use."""
_started: list[subprocess.Popen[bytes]] = []
"""Programs that were started. They must be waited for, and they outlive the provider object that started them."""


class CommandProvider(Provider):
    """An engine that is a program on this machine, started once for each box."""

    exit_grace_sec: ClassVar[float] = 2.0
    """Seconds that the program may take to clean up after its box has ended."""
    drops_user: ClassVar[bool] = True
    """Whether the program itself is started as the box's user on the machine, or as ours."""
    filtered: ClassVar[bool] = False
    """Whether the program takes a system call filter from a descriptor (`BoxParameters.filter_fd`)."""
    watched: ClassVar[bool] = True
    """Whether the guest holds memory by a watchdog and processes by an rlimit, for want of control groups."""

    def __init__(self) -> None:
        self._shared_files: SharedFiles | None = None

    def set_directories(self, state_dir: str, run_dir: str) -> None:
        self._shared_files = SharedFiles(self.name, run_dir)

    # --- what a subclass says --------------------------------------------------------------------------------

    @abstractmethod
    def claims(self) -> Capabilities:
        """Return what this engine can do here as far as can be read; an unusable one says why. `probe` proves it."""

    @abstractmethod
    def command(self, order: Order, parameters: BoxParameters) -> list[str]:
        """Return the command line that makes the box and runs `parameters.guest` in it. It must not hold a secret."""

    def counters(self, guest: int) -> BoxCounters:
        """Return where the counters are read of the box whose guest has this pid."""
        return WatchdogCounters()

    def guest(self, parameters: BoxParameters) -> tuple[str, ...]:
        """Return the guest's command line as it is inside, where the bundle is shown."""
        packed = self.shared_files.bundle
        assert packed is not None
        return tuple(packed.argv("hutch.providers.guest_bundle.boot", GUEST_DIR, "guest"))

    def guest_options(self, order: Order, parameters: BoxParameters) -> dict[str, Any]:
        return jail_spec.guest_options(order, watched=self.watched)

    # --- the contract ----------------------------------------------------------------------------------------

    @property
    def shared_files(self) -> SharedFiles:
        if self._shared_files is None:
            raise EngineError(
                f"provider {self.name} does not know where its files may be", remedy="call set_directories() first"
            )
        return self._shared_files

    async def probe(self) -> Capabilities:
        """Prove the claims with a canary box."""
        claimed = self.claims()
        if not claimed.usable:
            return claimed
        order = canary(self.name)
        try:
            await run_canary(self, order)
        except HutchError as error:
            return claimed.but(usable=False, reason=error.message, remedy=error.remedy or "run `hutch doctor`")
        return claimed

    async def check(self) -> None:
        """Make a canary box: one of a local program is cheap enough."""
        known = await self.probe()
        if not known.usable:
            raise EngineError(known.reason, op="probe", remedy=known.remedy)

    def plan(self, order: Order) -> InstanceRecord:
        return InstanceRecord(provider=self.name, box_id=order.box_id, keeper=order.keeper)

    async def create(self, order: Order, planned: InstanceRecord) -> CommandInstance:
        jail_spec.check(order, self.claims())
        mounts.check_sources(order)
        # A creation that is cancelled runs to its end and is then undone.
        making = asyncio.ensure_future(self._make(order, planned))
        try:
            return await asyncio.shield(making)
        except BaseException as error:
            await asyncio.shield(self._undo(making, planned))
            if isinstance(error, OSError) and not isinstance(error, HutchError):
                raise EngineError(f"box {order.box_id} could not be made: {error}", op="create") from error
            raise

    async def _undo(self, making: "asyncio.Future[CommandInstance]", planned: InstanceRecord) -> None:
        with contextlib.suppress(HutchError, OSError, asyncio.CancelledError):  # the caller gets the error, or has gone
            await (await making).close()
        await self.destroy(planned)

    async def _make(self, order: Order, planned: InstanceRecord) -> CommandInstance:
        base = await asyncio.to_thread(self.shared_files.prepare, public=self._has_ids)
        directory = str(self.shared_files.box(order.box_id))
        parameters = BoxParameters(directory=directory, base=str(base), uid=self._uid(order.box_id), guest=())
        self._make_directories(parameters, planned)
        program = self._launch(order, parameters)
        link, guest = await self._connect(order, parameters, program)
        Path(parameters.directory, "guest").write_text(str(guest))
        instance = self._instance(planned, order.spec, guest)
        try:
            await instance.meet(link)
            await mounts.verify(link, order)
        except BaseException:
            await instance.close()
            raise
        return instance

    def _make_directories(self, parameters: BoxParameters, planned: InstanceRecord) -> None:
        directory = Path(parameters.directory)
        directory.mkdir(mode=0o711)
        (directory / "record").write_bytes(planned.to_json())
        socket_dir = Path(parameters.socket_dir)
        socket_dir.mkdir(mode=0o700)
        if self._has_ids:
            os.chown(socket_dir, parameters.uid, parameters.uid)

    def _launch(self, order: Order, parameters: BoxParameters) -> Identity:
        """Start the program in a session of its own, so that it outlives us and no terminal's signals reach it."""
        _reap()
        filter_fd = _filter_file() if self.filtered else -1
        ids: dict[str, Any] = {}
        if self._has_ids and self.drops_user:
            ids = {"user": parameters.uid, "group": parameters.uid, "extra_groups": []}
        try:
            parameters = parameters._replace(filter_fd=filter_fd)
            command = self.command(order, parameters._replace(guest=self.guest(parameters)))
            with open(Path(parameters.directory, "log"), "wb") as log:
                program = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env={"PATH": jail_spec.PATH},
                    start_new_session=True, pass_fds=() if filter_fd < 0 else (filter_fd,), **ids,
                )  # fmt: skip
        finally:
            if filter_fd >= 0:
                os.close(filter_fd)
        _started.append(program)
        identity = process_trees.identity(program.pid)
        if identity is None:
            raise self._failed(order, parameters, "its program ended at once")
        Path(parameters.directory, "program").write_text(str(identity))
        return identity

    async def _connect(self, order: Order, parameters: BoxParameters, program: Identity) -> tuple[Link, Identity]:
        """Connect to the guest. Whoever listens first is the guest, since no command runs before it has its options."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _TIMEOUT
        while True:
            try:
                sock, pid = connect_to_guest(parameters.socket_dir)
                break
            except (FileNotFoundError, ConnectionRefusedError, PermissionError, BlockingIOError):
                if not program.alive():
                    raise self._failed(order, parameters, "its program ended") from None
                if loop.time() > deadline:
                    raise self._failed(order, parameters, "its guest does not answer") from None
            await asyncio.sleep(0.002)
        guest = process_trees.identity(pid)
        if guest is None:
            sock.close()
            raise self._failed(order, parameters, "its guest ended at once")
        await loop.sock_sendall(sock, framed_options(json.dumps(self.guest_options(order, parameters)).encode()))
        return await Link.over(sock), guest

    def _failed(self, order: Order, parameters: BoxParameters, what: str) -> EngineError:
        said = Path(parameters.directory, "log").read_text(errors="replace").strip()[-500:]
        return EngineError(f"box {order.box_id} could not be made: {what}: {said or 'it said nothing'}", op="create")

    def _instance(self, record: InstanceRecord, spec: EffectiveSpec, guest: Identity) -> CommandInstance:
        socket_dir = f"{self.shared_files.box(record.box_id)}/door"
        return CommandInstance(record, spec, guest, socket_dir, self.counters(guest.pid), watched=self.watched)

    async def attach(self, record: InstanceRecord, spec: EffectiveSpec) -> CommandInstance:
        guest = self._read_identity(record.box_id, "guest")
        if guest is None or not guest.alive():
            raise NotFound(f"box {record.box_id} no longer runs", op="attach")
        instance = self._instance(record, spec, guest)
        try:
            await instance.resume()  # the keeper that paused it is gone
            await instance.link()
        except HutchError as error:
            await instance.close()
            if not guest.alive():
                raise NotFound(f"box {record.box_id} no longer runs", op="attach") from error
            raise
        return instance

    async def stop(self, record: InstanceRecord) -> None:
        raise Unsupported(f"boxes of provider {self.name} keep nothing", op="stop", remedy="destroy it")

    async def restore(self, order: Order, record: InstanceRecord) -> CommandInstance:
        raise NotFound(f"box {record.box_id} has no kept files to come back from", op="restore")

    async def destroy(self, record: InstanceRecord) -> None:
        directory = self.shared_files.box(record.box_id)
        identities = [self._read_identity(record.box_id, name) for name in ("guest", "program")]
        roots = [identity for identity in identities if identity is not None]
        await process_trees.end(roots, grace=self.exit_grace_sec)
        _reap()
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
        if directory.exists():
            raise Unavailable(f"{directory} of box {record.box_id} cannot be removed", op="destroy")

    async def list(self) -> tuple[InstanceRecord, ...]:
        found = []
        for path in sorted(self.shared_files.home.glob("*/record")):
            with contextlib.suppress(OSError, HutchError):  # it goes, or comes, at this moment
                found.append(InstanceRecord.from_json(path.read_bytes()))
        return tuple(found)

    async def close(self) -> None:
        """Release nothing: boxes are found by their directories."""
        _reap()

    @property
    def _has_ids(self) -> bool:
        """Return whether each box can have a user of its own on this machine."""
        return os.geteuid() == 0

    def _uid(self, box_id: str) -> int:
        return _FIRST_ID + zlib.crc32(box_id.encode()) % (1 << 24) if self._has_ids else os.geteuid()

    def _read_identity(self, box_id: str, name: str) -> Identity | None:
        try:
            return Identity.parse((self.shared_files.box(box_id) / name).read_text())
        except FileNotFoundError:
            return None


async def run_canary(provider: Provider, order: Order) -> None:
    """Run a command in a box of this order, and destroy the box. What the engine raises is raised."""
    box = await provider.create(order, provider.plan(order))
    try:
        await box.run(Command(command=("true",), timeout_sec=10.0))
    finally:
        await box.close()
        await provider.destroy(box.record)


def canary(provider: str, image: str = "host") -> Order:
    """Return the order of a small box that proves an engine."""
    limits = Limits(cpus=1, memory_mb=64, pids=16, disk_mb=16, open_files=256, timeout_sec=10, max_timeout_sec=10)
    spec = EffectiveSpec(
        profile="", provider=provider, image=image, workspace=Workspace(), workdir="/workspace", user="user",
        mounts=(), env={}, secrets={}, network=NetworkMode.OFF, allow_private=(), limits=limits, read_only_root=True,
        retention=Retention.TEMPORARY, idle_timeout_sec=0.0, ttl_sec=60.0, labels={}, ports=(), name="",
    )  # fmt: skip
    box_id = new_box_id()
    return Order(box_id=box_id, keeper=f"canary-{box_id}", spec=spec)


def _filter_file() -> int:
    """Return the native engine's system call filter as a file in memory."""
    fd = os.memfd_create("filter", 0)
    os.write(fd, seccomp.program(asks=False))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _reap() -> None:
    _started[:] = [program for program in _started if program.poll() is None]
