"""The native provider: boxes made of namespaces on this machine, as root or as an ordinary user, without a daemon."""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hutch.errors import BoxBroken, ConfigError, EngineError, HutchError, NotFound, Unavailable, Unsupported
from hutch.images.settings import ImageSettings
from hutch.linux import identity
from hutch.linux.cgroups import Group, GroupLimits, Tree
from hutch.model.capabilities import Capabilities
from hutch.model.ids import new_box_id
from hutch.model.images import ImageDefaults
from hutch.model.limits import EnforcedBy, Limits
from hutch.model.spec import CheckedMount, EffectiveSpec, NetworkMode, Order
from hutch.providers.base import Instance, InstanceRecord, Leftover, Provider
from hutch.providers.guest_client.link import Link
from hutch.providers.native import cleanup, obstacles, orders, probe
from hutch.providers.native.network import availability
from hutch.providers.native.probe import Machine
from hutch.providers.native.rootfs.images import Image, Images
from hutch.providers.native.spawn import wire
from hutch.providers.native.spawn.client import PendingRequest, SpawnerPool
from hutch.providers.native.watch.watchdogs import Watchdogs

if TYPE_CHECKING:
    from hutch.providers.handles import Entrance
    from hutch.providers.native.instance import NativeInstance
    from hutch.providers.native.layers.client import SharedLayers

_OUTCOME_TIMEOUT = 20.0
_FAILURE_TIMEOUT = 2.0
"""Seconds that the spawner may take to report why a box failed, after the box's connection has ended."""


class NativeProvider(Provider):
    """See docs/architecture.md, "The native engine"."""

    name: ClassVar[str] = cleanup.PROVIDER

    def __init__(
        self,
        *,
        state_dir: str | os.PathLike[str] | None = None,
        run_dir: str | os.PathLike[str] | None = None,
        without: frozenset[str] = frozenset(),
    ) -> None:
        """`without` leaves out defences (docs/threat-model.md has the list) and optimisations (bench/ablation.py).

        It exists so that the attack suite can show each attack succeed where its one defence is missing, and so that
        the bench can measure what each optimisation saves. No configuration, spec, environment or command line leads
        here; only the code of tests and of the bench may pass it.
        """
        self._state = os.fspath(state_dir) if state_dir else ""
        self._run = os.fspath(run_dir) if run_dir else ""
        self._without = without
        self._known_images: Images | None = None
        self._image_settings = ImageSettings()
        self._spawners: dict[tuple[str, bool], SpawnerPool] = {}
        self._trees: dict[str, Tree] = {}
        self._machine: Machine | None = None
        self._machine_lock = threading.Lock()
        """Protects the detection of machine facts, which runs in a thread for `probe` and on the loop for others."""
        self._doubted = False
        """Whether the next probe makes a new canary, because the engine has failed."""
        self._watchdogs = Watchdogs()
        self._ended_foreign_boxes = False
        """Whether boxes of other keepers' spawners have been ended here."""

    def configure(self, settings: Mapping[str, object]) -> None:
        known = {"state_dir", "run_dir", "images"}
        for name in settings:
            if name not in known:
                raise ConfigError(
                    f"provider native has no setting {name!r}", remedy=f"it has: {', '.join(sorted(known))}"
                )
        self._state = str(settings.get("state_dir") or self._state)
        self._run = str(settings.get("run_dir") or self._run)
        images = settings.get("images")
        self._image_settings = images if isinstance(images, ImageSettings) else ImageSettings.from_plain(images or {})

    @property
    def _stores(self) -> str:
        return os.path.join(self._state, "boxes")

    # --- what can be done here -------------------------------------------------------------------------------

    async def probe(self) -> Capabilities:
        found = probe.capabilities(await asyncio.to_thread(self._machine_facts))
        doubted, self._doubted = self._doubted, False
        cache = os.path.join(self._state, "cache")
        found = await probe.proven(found, self._canary, cache, anew=doubted)
        # Routing by the kernel needs no other program. Pasta depends on its release, so it is tested.
        carried = found.usable and self._machine_facts().network.how == availability.CARRIED
        return await probe.with_proven_network(found, cache) if carried else found

    def forget_probe(self) -> None:
        self._doubted = True

    async def check(self) -> None:
        """Make a canary box, which is cheap enough for a health check."""
        try:
            await self._canary()
        except OSError as error:
            raise EngineError(f"no box can be made: {error}", op="probe", remedy="run `hutch doctor`") from error

    async def _canary(self) -> None:
        """Make a box, run a command in it and destroy it."""
        box_id = new_box_id()
        # Each canary has a keeper name of its own: a canary that ends would remove the group directory of another. No
        # such keeper runs, so the box gets an id that other keepers do not list.
        order = Order(box_id=cleanup.unowned(box_id), keeper=f"canary-{box_id}", spec=orders.canary_spec())
        try:
            box = await self.create(order, self.plan(order))
            try:
                await box.check()
            finally:
                await box.close()
                await self.destroy(box.record)
        finally:
            if spawners := self._spawners.pop((order.keeper, False), None):
                await spawners.close()
            if tree := self._trees.pop(order.keeper, None):
                tree.close()

    def _machine_facts(self) -> Machine:
        if self._machine is None:
            with self._machine_lock:
                self._machine = self._machine or probe.look()
        return self._machine

    # --- making ----------------------------------------------------------------------------------------------

    def plan(self, order: Order) -> InstanceRecord:
        data: dict[str, Any] = {"directory": os.path.join(self._run, order.box_id)}
        if orders.is_persistent(order.spec):
            data["store"] = os.path.join(self._stores, order.box_id)
        return InstanceRecord(provider=self.name, box_id=order.box_id, keeper=order.keeper, data=data)

    async def create(
        self, order: Order, planned: InstanceRecord, layers: "SharedLayers | None" = None
    ) -> "NativeInstance":
        """See the contract. A fork begins with `layers`."""
        orders.check_layers(order.spec, self._machine_facts().mapped_layers)
        store = planned.data.get("store")
        if isinstance(store, str):
            cleanup.make_store(store, order.keeper)
        return await self._make(order, planned, layers)

    async def _make(
        self, order: Order, planned: InstanceRecord, layers: "SharedLayers | None" = None
    ) -> "NativeInstance":
        store = planned.data.get("store")
        found = self._machine_facts()
        orders.check_network(order.spec, found.networks, found.network_reason)
        if not self._spawners:
            await cleanup.sweep(self._run)
        network = order.spec.network is not NetworkMode.OFF
        with contextlib.suppress(OSError):  # the request below reports the error
            self._spawners_of(order.keeper, network).begin()  # it starts while the image is resolved
        message = orders.request(
            order, await self._image(order, planned), store if isinstance(store, str) else None,
            has_id_ranges=found.has_id_ranges, counts_processes=found.cgroups.pids,
        )  # fmt: skip
        trees: list[int] = []
        if layers is not None:
            message["layers"], trees = layers.state, layers.trees
        pending: PendingRequest | None = None
        # The guest starts with a connection to its keeper, which saves a connect and a wait.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        link: Link | None = None
        try:
            with theirs:
                options = wire.write_memfd(orders.guest_options(order))
                tree = self._trees.get(order.keeper)
                message["spare_group"] = tree.take_spare() if tree else ""
                try:
                    descriptors = [options, theirs.fileno(), *trees]
                    pending = await self._spawners_of(order.keeper, network).create(message, descriptors)
                finally:
                    os.close(options)
            link = await Link.begin(ours)
            instance = await self._await_guest(order, planned, pending, link)
        except BaseException as error:
            link.close() if link else ours.close()
            # Shielded, so that a creation that is cancelled twice leaves nothing behind either.
            await asyncio.shield(self._abandon(planned, pending))
            if isinstance(error, OSError) and not isinstance(error, HutchError):
                raise EngineError(f"box {order.box_id} could not be made: {error}", op="create") from error
            raise
        pending.close()
        return instance

    async def _await_guest(
        self, order: Order, planned: InstanceRecord, pending: PendingRequest, link: Link
    ) -> "NativeInstance":
        """Wait for the facts of the box's process, then for its guest's greeting."""
        answer = await asyncio.shield(pending.facts)
        if "box" not in answer:
            raise obstacles.creation_error(order, answer)
        record = planned.but(data={**planned.data, **answer["box"]})
        instance = self._instance(record, order.spec, fresh=True)
        try:
            await instance.meet(link)
        except HutchError as error:
            await instance.close()
            try:
                async with asyncio.timeout(_FAILURE_TIMEOUT):
                    failure = await asyncio.shield(pending.failure)
            except TimeoutError:
                raise error from None  # the guest had started, and failed then
            raise obstacles.creation_error(order, failure) from error
        except BaseException:
            await instance.close()
            raise
        return instance

    async def _abandon(self, planned: InstanceRecord, pending: PendingRequest | None) -> None:
        if pending is not None:
            # The request may still be queued: discarding at once would leave the box that it starts.
            try:
                async with asyncio.timeout(_OUTCOME_TIMEOUT):
                    await pending.facts
            finally:
                pending.close()
        await self._discard(planned, keep_store="restored" in planned.data)

    async def image(self, reference: str) -> ImageDefaults | None:
        return await self._images.defaults(reference)

    async def needs_pull(self, reference: str) -> bool:
        return await self._images.needs_pull(reference)

    @property
    def _images(self) -> Images:
        if self._known_images is None:
            self._known_images = Images(
                os.path.join(self._state, "cache"), os.path.join(self._state, "images"), self._image_settings
            )
        return self._known_images

    async def _image(self, order: Order, planned: InstanceRecord) -> Image:
        if not order.spec.image.startswith("oci:"):
            return await self._images.resolve(order.spec.image, order.places.image)
        places = tuple(str(planned.data[name]) for name in ("directory", "store") if name in planned.data)
        return await self._images.hold_for_box(order.spec.image, order.box_id, places)

    def _spawners_of(self, keeper: str, network: bool = False) -> SpawnerPool:
        """The spawners for a keeper's name, which is part of the paths of control groups.

        Boxes with a network share one pool, whatever private ranges they may reach: a pool takes four processes.
        """
        key = (keeper, network)
        if key not in self._spawners:
            os.makedirs(self._run, 0o700, exist_ok=True)
            name = _group_name(keeper)
            self._spawners[key] = SpawnerPool(
                {
                    "keeper": keeper,
                    "groups": name,
                    "run": self._run,
                    "without": sorted(self._without),
                    "network": network,
                    "testing": False,
                },
                frozenset(self._machine_facts().cgroups.controllers),
            )
        return self._spawners[key]

    def _instance(self, record: InstanceRecord, spec: EffectiveSpec, *, fresh: bool = False) -> "NativeInstance":
        """Make the instance of a box. `fresh` means that nothing has run in it yet."""
        from hutch.providers.native.instance import NativeInstance  # imported while the first box's process starts

        path = os.path.join(str(record.data["directory"]), "guest")

        async def connect() -> Link:
            return await Link.connect(path)

        def group_limits(limits: Limits) -> GroupLimits:
            return orders.group_limits(limits, persistent=orders.is_persistent(spec))

        async def root_guest(user: str) -> Link:
            return await self._root_guest(record, spec, user)

        instance = NativeInstance(
            record, spec, connect, lambda: self._group(record, fresh), group_limits, root_guest, self._watchdogs,
            fresh=fresh, show=lambda place: self._mount(record, place), entrance=self._entrance,
            work_on_layers=lambda message, fds: self._spawners_of(record.keeper).layers(message, fds),
        )  # fmt: skip
        self._start_watchdogs(instance, lived=not fresh or "restored" in record.data)
        return instance

    def _start_watchdogs(self, box: "NativeInstance", *, lived: bool) -> None:
        """Start the watchdogs for limits that the kernel does not enforce."""
        pid, store = box.record.data["pid"], box.record.data.get("store")
        assert isinstance(pid, int)
        try:
            if probe.grades(self._machine_facts()).memory_mb is EnforcedBy.WATCHDOG:
                self._watchdogs.watch_memory(box, pid)
            elif box.record.data.get("groups"):
                self._watchdogs.watch_sockets(box)
            if not self._machine_facts().cgroups.cpu and not self._machine_facts().blind:
                self._watchdogs.watch_cpu(box, pid)
            if isinstance(store, str) and not self._machine_facts().blind:
                self._watchdogs.watch_disk(box, pid, store, lived=lived)
        except ProcessLookupError:
            return  # the box has just ended, which the link reports

    async def _root_guest(self, record: InstanceRecord, spec: EffectiveSpec, user: str) -> Link:
        """The link to a guest that runs as another user of the box, which is started on first use."""
        uid = 0 if user == "root" else int(user)
        if not self._machine_facts().has_id_ranges or uid >= identity.RANGE:
            raise Unsupported(
                f"commands cannot run as {user!r} here",
                op="run",
                remedy="use `user`"
                if self._machine_facts().has_id_ranges
                else "run Hutch as root: one id is all an ordinary user has",
            )
        socket_name = "deputy" if uid == 0 else f"deputy-{uid}"
        path = os.path.join(str(record.data["directory"]), socket_name)
        try:
            return await Link.connect(path)
        except Unavailable:
            await self._enter(record, spec, socket_name, uid)
        return await Link.connect(path)

    async def _entrance(self, box: "NativeInstance") -> "Entrance | None":
        from hutch.providers.native.entrance import open_entrance  # Few boxes are entered.

        found = self._machine_facts()
        if box.spec.image != "host" or self._without:
            return None
        return await open_entrance(box, self._watchdogs, has_id_ranges=found.has_id_ranges)

    async def _enter(self, record: InstanceRecord, spec: EffectiveSpec, socket_name: str, uid: int) -> None:
        facts = ("pid", "start", "boot", "directory", "groups")
        message = {name: record.data[name] for name in facts} | {"socket_name": socket_name, "uid": uid}
        options = wire.write_memfd(orders.root_guest_options(record, spec, uid))
        try:
            answer = await self._spawners_of(record.keeper).enter(message, options)
        finally:
            os.close(options)
        if "ready" not in answer:
            step, error = answer.get("step", ""), answer.get("error", "")
            raise EngineError(
                f"no guest for user {uid} in box {record.box_id}: {step}: {error}",
                op="run",
                details={"errno": answer.get("errno", "")},
            )

    async def _mount(self, record: InstanceRecord, place: CheckedMount) -> None:
        if not self._machine_facts().has_id_ranges:
            raise Unsupported("only root can mount something in a running box", op="show", remedy="make a new box")
        message = {name: record.data[name] for name in ("pid", "start", "boot")} | {
            "host_mount": orders.host_mount(place)
        }
        answer = await self._spawners_of(record.keeper).show(message)
        if "ready" not in answer:
            raise EngineError(
                f"no mount at {place.target} in box {record.box_id}: {answer.get('step')}: {answer.get('error')}",
                op="show",
                details={"errno": answer.get("errno", "")},
            )

    def _group(self, record: InstanceRecord, fresh: bool) -> Group | None:
        paths = record.data.get("groups")
        if not isinstance(paths, list) or not paths:
            return None
        tree = self._tree(record.keeper)
        try:
            return tree.made(paths) if fresh else tree.open(paths)
        except FileNotFoundError:
            return None

    def _tree(self, keeper: str) -> Tree:
        if keeper not in self._trees:
            self._trees[keeper] = Tree(self._machine_facts().cgroups, _group_name(keeper))
        return self._trees[keeper]

    def _retire_group(self, keeper: str) -> Callable[[list[str]], bool] | None:
        """What keeps the group of an ended box for the next one, if this process makes boxes for that keeper."""
        makes_boxes = any(keeper == name for name, _ in self._spawners)
        return (lambda paths: self._tree(keeper).retire(paths)) if makes_boxes else None

    async def fork(
        self, order: Order, planned: InstanceRecord, source: Instance, state: Awaitable[str]
    ) -> "tuple[NativeInstance, str]":
        from hutch.providers.native.layers import forks

        return await forks.fork(self, order, planned, source, state)

    # --- finding again ---------------------------------------------------------------------------------------

    async def attach(self, record: InstanceRecord, spec: EffectiveSpec) -> "NativeInstance":
        found = cleanup.record_of(record.box_id, self._run, record.keeper)
        if found is not None and "pid" in found.data:
            record = record.but(data={**record.data, **found.data})
        process = cleanup.process_of(record)
        if process is None or not process.alive():
            raise NotFound(f"box {record.box_id} no longer runs", op="attach")
        await self._watchdogs.settled(record.box_id)
        instance = self._instance(record, spec)
        try:
            with contextlib.suppress(Unsupported):
                await instance.resume()  # a dead keeper may have paused it, and a paused guest cannot greet
            await instance.link()
        except (BoxBroken, Unavailable) as error:
            await instance.close()
            # Its spawner may be ending it right now, because it had not become a guest when its keeper died.
            if await cleanup.ends(process):
                raise NotFound(f"box {record.box_id} no longer runs", op="attach") from error
            raise
        except BaseException:
            await instance.close()
            raise
        return instance

    async def restore(self, order: Order, record: InstanceRecord) -> "NativeInstance":
        store = record.data.get("store")
        if not isinstance(store, str) or not os.path.isdir(store):
            raise NotFound(f"box {record.box_id} has no kept files to come back from", op="restore")
        await self._discard(record, keep_store=True)
        planned = self.plan(order)
        return await self._make(order, planned.but(data={**planned.data, "store": store, "restored": True}))

    async def stop(self, record: InstanceRecord) -> None:
        await self._discard(record, keep_store=True)

    async def destroy(self, record: InstanceRecord) -> None:
        await self._discard(record, keep_store=False)

    async def _discard(self, record: InstanceRecord, *, keep_store: bool) -> None:
        self._watchdogs.forget(record.box_id)
        self._ended_foreign_boxes |= all(record.keeper != keeper for keeper, _ in self._spawners)
        await cleanup.discard(record, keep_store=keep_store, retire=self._retire_group(record.keeper))
        if not keep_store:
            self._images.release(record.box_id)

    async def list(self) -> tuple[InstanceRecord, ...]:
        return await asyncio.to_thread(cleanup.records, self._run, self._stores)

    async def sweep(self, *, dry_run: bool = False) -> tuple[Leftover, ...]:
        from hutch.providers.native.network import uplink
        from hutch.providers.native.network.firewall import FirewallError

        if not dry_run:
            await cleanup.sweep(self._run)
        found = await asyncio.to_thread(self._machine_facts)
        groups = await asyncio.to_thread(cleanup.sweep_groups, found.cgroups, dry_run=dry_run)
        drafts = await asyncio.to_thread(self._images.sweep, dry_run=dry_run)
        try:
            networks = await asyncio.to_thread(uplink.sweep, dry_run=dry_run)
        except (OSError, FirewallError) as error:
            raise EngineError(
                f"what a dead keeper left of the network of its boxes cannot be removed: {error}",
                op="prune",
                remedy="install nftables; `ip link` shows the links hv*, `nft list tables` the tables hutch_*",
            ) from error
        swept = {"group": groups, "directory": drafts, "network": networks}
        return tuple(Leftover(kind=kind, name=name) for kind, names in swept.items() for name in names)

    async def close(self) -> None:
        await self._watchdogs.close()
        spawners, self._spawners = self._spawners, {}
        for each in spawners.values():
            await each.close()
        trees, self._trees = self._trees, {}
        # A killed spawner leaves its groups, perhaps one that no record names yet.
        kept = [tree for tree in trees.values() if not tree.close()]
        if kept or self._ended_foreign_boxes or any(each.lost_spawner for each in spawners.values()):
            await self.sweep()


def _group_name(keeper: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in keeper.lower())[:40].strip("-") or "keeper"
