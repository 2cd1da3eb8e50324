"""`LaunchedProvider`: write one command line, and you have an engine. The guest, the files and the finding are here.

A subclass says what it can do (`claims`) and how its program is started (`command`), from the list of what a box shows
(`shape.shown`). Everything of a box is under one directory, named after it: its record, its door, its program's log.
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
from hutch.providers.command.instance import LaunchedInstance, WatchedFacts, knock
from hutch.providers.command.jail_spec import Site
from hutch.providers.command.shared_files import Ground
from hutch.providers.guest_bundle.counters import Facts
from hutch.providers.guest_bundle.listener import GUEST_PLACE, packed
from hutch.providers.guest_client.link import Link

_PATIENCE = 20.0
_FIRST_ID = 0x70000000
"""Users of boxes on the machine, where we are root: far above those that people and engines hand out."""
_started: list[subprocess.Popen[bytes]] = []
"""Children have to be waited for; they outlive the provider object that started them."""


class LaunchedProvider(Provider):
    """An engine that is a program."""

    farewell: ClassVar[float] = 2.0
    """Seconds that the program may take to clean up after its box has ended."""
    drops_user: ClassVar[bool] = True
    """Whether the program itself is started as the box's user on the machine, or as ours."""
    filtered: ClassVar[bool] = False
    """Whether the program takes a system call filter from a descriptor (`Site.filter_fd`)."""
    watched: ClassVar[bool] = True
    """Whether the guest holds memory by a watchdog and processes by an rlimit, for want of control groups."""

    def __init__(self) -> None:
        self._ground: Ground | None = None

    def settle(self, state_dir: str, run_dir: str) -> None:
        self._ground = Ground(self.name, run_dir)

    # --- what a subclass says --------------------------------------------------------------------------------

    @abstractmethod
    def claims(self) -> Capabilities:
        """What can be done here, as far as looking tells; an unusable engine says why. `probe` proves it with a box."""

    @abstractmethod
    def command(self, order: Order, site: Site) -> list[str]:
        """The command line that makes the box and runs `site.guest` in it. It must not contain secrets."""

    def facts(self, guest: int) -> Facts:
        """Where the counters of a box are read whose guest has this pid."""
        return WatchedFacts()

    def guest(self, site: Site) -> tuple[str, ...]:
        """The guest's command line: inside, where the planted runtime is shown."""
        packed = self.ground.plant
        assert packed is not None
        return tuple(packed.argv("hutch.providers.guest_bundle.boot", GUEST_PLACE, "guest"))

    def told(self, order: Order, site: Site) -> dict[str, Any]:
        return jail_spec.told(order, watched=self.watched)

    # --- the contract ----------------------------------------------------------------------------------------

    @property
    def ground(self) -> Ground:
        if self._ground is None:
            raise EngineError(f"provider {self.name} was not told where its files may be", remedy="call settle() first")
        return self._ground

    async def probe(self) -> Capabilities:
        """A canary box proves the claims."""
        claimed = self.claims()
        if not claimed.usable:
            return claimed
        order = canary(self.name)
        try:
            box = await self.create(order, self.plan(order))
            try:
                await box.run(Command(command=("true",), timeout_sec=10.0))
            finally:
                await box.close()
                await self.destroy(box.record)
        except HutchError as error:
            return claimed.but(usable=False, reason=error.message, remedy=error.remedy or "run `hutch doctor`")
        return claimed

    async def check(self) -> None:
        """A box of a program is cheap enough to be the question itself."""
        known = await self.probe()
        if not known.usable:
            raise EngineError(known.reason, op="probe", remedy=known.remedy)

    def plan(self, order: Order) -> InstanceRecord:
        return InstanceRecord(provider=self.name, box_id=order.box_id, keeper=order.keeper)

    async def create(self, order: Order, planned: InstanceRecord) -> LaunchedInstance:
        jail_spec.check(order, self.claims())
        mounts.look(order)
        # A cancelled creation is seen to its end and then undone.
        making = asyncio.ensure_future(self._make(order, planned))
        try:
            return await asyncio.shield(making)
        except BaseException as error:
            await asyncio.shield(self._retreat(making, planned))
            if isinstance(error, OSError) and not isinstance(error, HutchError):
                raise EngineError(f"box {order.box_id} could not be made: {error}", op="create") from error
            raise

    async def _retreat(self, making: "asyncio.Future[LaunchedInstance]", planned: InstanceRecord) -> None:
        with contextlib.suppress(HutchError, OSError, asyncio.CancelledError):  # the caller is told, or has gone
            await (await making).close()
        await self.destroy(planned)

    async def _make(self, order: Order, planned: InstanceRecord) -> LaunchedInstance:
        base = await asyncio.to_thread(self.ground.prepare, public=self._has_ids)
        site = Site(directory=str(self.ground.box(order.box_id)), base=str(base), uid=self._uid(order.box_id), guest=())
        self._furnish(site, planned)
        program = self._launch(order, site)
        link, guest = await self._meet(order, site, program)
        Path(site.directory, "guest").write_text(str(guest))
        instance = self._instance(planned, order.spec, guest)
        try:
            await instance.meet(link)
            await mounts.verify(link, order)
        except BaseException:
            await instance.close()
            raise
        return instance

    def _furnish(self, site: Site, planned: InstanceRecord) -> None:
        directory = Path(site.directory)
        directory.mkdir(mode=0o711)
        (directory / "record").write_bytes(planned.to_json())
        door = Path(site.door)
        door.mkdir(mode=0o700)
        if self._has_ids:
            os.chown(door, site.uid, site.uid)

    def _launch(self, order: Order, site: Site) -> Identity:
        """Started in a session of its own: it outlives us, and no terminal's signals reach it."""
        _reap()
        filter_fd = _filter() if self.filtered else -1
        ids: dict[str, Any] = {}
        if self._has_ids and self.drops_user:
            ids = {"user": site.uid, "group": site.uid, "extra_groups": []}
        try:
            site = site._replace(filter_fd=filter_fd)
            command = self.command(order, site._replace(guest=self.guest(site)))
            with open(Path(site.directory, "log"), "wb") as log:
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
            raise self._failed(order, site, "its program ended at once")
        Path(site.directory, "program").write_text(str(identity))
        return identity

    async def _meet(self, order: Order, site: Site, program: Identity) -> tuple[Link, Identity]:
        """Who opens the door first is the guest: no command can run before it has had its orders."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _PATIENCE
        while True:
            try:
                sock, pid = knock(site.door)
                break
            except (FileNotFoundError, ConnectionRefusedError, PermissionError, BlockingIOError):
                if not program.alive():
                    raise self._failed(order, site, "its program ended") from None
                if loop.time() > deadline:
                    raise self._failed(order, site, "its guest does not answer") from None
            await asyncio.sleep(0.002)
        guest = process_trees.identity(pid)
        if guest is None:
            sock.close()
            raise self._failed(order, site, "its guest ended at once")
        await loop.sock_sendall(sock, packed(json.dumps(self.told(order, site)).encode()))
        return await Link.over(sock), guest

    def _failed(self, order: Order, site: Site, what: str) -> EngineError:
        said = Path(site.directory, "log").read_text(errors="replace").strip()[-500:]
        return EngineError(f"box {order.box_id} could not be made: {what}: {said or 'it said nothing'}", op="create")

    def _instance(self, record: InstanceRecord, spec: EffectiveSpec, guest: Identity) -> LaunchedInstance:
        door = f"{self.ground.box(record.box_id)}/door"
        return LaunchedInstance(record, spec, guest, door, self.facts(guest.pid), watched=self.watched)

    async def attach(self, record: InstanceRecord, spec: EffectiveSpec) -> LaunchedInstance:
        guest = self._written(record.box_id, "guest")
        if guest is None or not guest.alive():
            raise NotFound(f"box {record.box_id} no longer runs", op="attach")
        instance = self._instance(record, spec, guest)
        try:
            await instance.resume()  # whoever paused it is gone
            await instance.link()
        except HutchError as error:
            await instance.close()
            if not guest.alive():
                raise NotFound(f"box {record.box_id} no longer runs", op="attach") from error
            raise
        return instance

    async def stop(self, record: InstanceRecord) -> None:
        raise Unsupported(f"boxes of provider {self.name} keep nothing", op="stop", remedy="destroy it")

    async def restore(self, order: Order, record: InstanceRecord) -> LaunchedInstance:
        raise NotFound(f"box {record.box_id} has no kept files to come back from", op="restore")

    async def destroy(self, record: InstanceRecord) -> None:
        directory = self.ground.box(record.box_id)
        roots = [found for name in ("guest", "program") if (found := self._written(record.box_id, name)) is not None]
        await process_trees.end(roots, grace=self.farewell)
        _reap()
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
        if directory.exists():
            raise Unavailable(f"{directory} of box {record.box_id} cannot be removed", op="destroy")

    async def list(self) -> tuple[InstanceRecord, ...]:
        found = []
        for path in sorted(self.ground.home.glob("*/record")):
            with contextlib.suppress(OSError, HutchError):  # it goes, or comes, at this moment
                found.append(InstanceRecord.from_json(path.read_bytes()))
        return tuple(found)

    async def close(self) -> None:
        """Nothing is held: boxes are found by their directories."""
        _reap()

    @property
    def _has_ids(self) -> bool:
        """Whether each box can have a user of its own on this machine."""
        return os.geteuid() == 0

    def _uid(self, box_id: str) -> int:
        return _FIRST_ID + zlib.crc32(box_id.encode()) % (1 << 24) if self._has_ids else os.geteuid()

    def _written(self, box_id: str, name: str) -> Identity | None:
        try:
            return Identity.parse((self.ground.box(box_id) / name).read_text())
        except FileNotFoundError:
            return None


def canary(provider: str, image: str = "host") -> Order:
    """A small box that proves an engine."""
    limits = Limits(cpus=1, memory_mb=64, pids=16, disk_mb=16, open_files=256, timeout_sec=10, max_timeout_sec=10)
    spec = EffectiveSpec(
        profile="", provider=provider, image=image, workspace=Workspace(), workdir="/workspace", user="user",
        mounts=(), env={}, secrets={}, network=NetworkMode.OFF, allow_private=(), limits=limits, read_only_root=True,
        retention=Retention.TEMPORARY, idle_timeout_sec=0.0, ttl_sec=60.0, labels={}, ports=(), name="",
    )  # fmt: skip
    box_id = new_box_id()
    return Order(box_id=box_id, keeper=f"canary-{box_id}", spec=spec)


def _filter() -> int:
    """The native engine's system call filter, as a file in memory."""
    fd = os.memfd_create("filter", 0)
    os.write(fd, seccomp.program(asks=False))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _reap() -> None:
    _started[:] = [program for program in _started if program.poll() is None]
