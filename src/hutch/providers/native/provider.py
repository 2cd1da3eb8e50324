"""The native engine: boxes made of namespaces on this machine, as root or as an ordinary user, without a daemon."""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hutch.errors import BoxBroken, ConfigError, EngineError, HutchError, NotFound, Refused, Unavailable, Unsupported
from hutch.images.settings import ImageSettings
from hutch.linux import identity
from hutch.linux.cgroups import Ceiling, Group, Tree
from hutch.model.capabilities import Capabilities
from hutch.model.ids import new_box_id
from hutch.model.images import ImageDefaults
from hutch.model.limits import EnforcedBy, Limits
from hutch.model.spec import CheckedMount, EffectiveSpec, NetworkMode, Order
from hutch.providers.base import InstanceRecord, Leftover, Provider
from hutch.providers.guest_client.link import Link
from hutch.providers.native import cleanup, obstacles, orders
from hutch.providers.native import probe as probing
from hutch.providers.native.network import availability
from hutch.providers.native.rootfs.images import Image, Images
from hutch.providers.native.spawn import wire
from hutch.providers.native.spawn.client import Begun, Spawners
from hutch.providers.native.watch.watchdogs import Guards

if TYPE_CHECKING:
    from hutch.providers.native.instance import NativeInstance

_OUTCOME_TIMEOUT = 20.0
_FAREWELL = 2.0
"""How long after its connection has ended the spawner may take to say why a box could not be made."""


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
        self._spawners: dict[tuple[str, bool], Spawners] = {}
        self._trees: dict[str, Tree] = {}
        self._machine: probing.Machine | None = None
        self._looking = threading.Lock()
        """Held while the machine is looked at: in a thread by `probe`, on the loop by whoever needs no probe."""
        self._doubted = False
        """An engine that failed proves itself anew, whatever earlier canaries have shown."""
        self._guards = Guards()
        self._inherited = False
        """Boxes of other keepers' spawners have been ended here."""

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
        found = probing.capabilities(await asyncio.to_thread(self._found))
        doubted, self._doubted = self._doubted, False
        cache = os.path.join(self._state, "cache")
        found = await probing.proven(found, self._canary, cache, anew=doubted)
        # What the kernel routes needs no other program; what pasta carries depends on its release.
        carried = found.usable and self._found().network.how == availability.CARRIED
        return await probing.with_proven_network(found, cache) if carried else found

    def doubt(self) -> None:
        self._doubted = True

    async def check(self) -> None:
        """A box is cheap enough to be the question itself."""
        try:
            await self._canary()
        except OSError as error:
            raise EngineError(f"no box can be made: {error}", op="probe", remedy="run `hutch doctor`") from error

    async def _canary(self) -> None:
        """A real box that runs a real command."""
        box_id = new_box_id()
        # A keeper's name of its own: one canary that ends would remove the groups' home under another that begins. No
        # such keeper lives, so that others would take the box for a dead one's if they saw it.
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

    def _found(self) -> probing.Machine:
        if self._machine is None:
            with self._looking:
                self._machine = self._machine or probing.look()
        return self._machine

    # --- making ----------------------------------------------------------------------------------------------

    def plan(self, order: Order) -> InstanceRecord:
        data: dict[str, Any] = {"directory": os.path.join(self._run, order.box_id)}
        if orders.is_persistent(order.spec):
            data["store"] = os.path.join(self._stores, order.box_id)
        return InstanceRecord(provider=self.name, box_id=order.box_id, keeper=order.keeper, data=data)

    async def create(self, order: Order, planned: InstanceRecord) -> "NativeInstance":
        orders.check_layers(order.spec, self._found().mapped_layers)
        store = planned.data.get("store")
        if isinstance(store, str):
            cleanup.make_store(store, order.keeper)
        return await self._make(order, planned)

    async def _make(self, order: Order, planned: InstanceRecord) -> "NativeInstance":
        store = planned.data.get("store")
        found = self._found()
        orders.check_network(order.spec, found.networks, found.network_reason)
        if not self._spawners:
            await cleanup.sweep(self._run)
        network = order.spec.network is not NetworkMode.OFF
        with contextlib.suppress(OSError):  # whoever asks it for the box is told
            self._spawners_of(order.keeper, network).begin()  # and gets ready while the image is looked at
        message = orders.request(
            order, await self._image(order, planned), store if isinstance(store, str) else None,
            ranged=found.ranged, counts_processes=found.cgroups.pids,
        )  # fmt: skip
        begun: Begun | None = None
        # The guest finds its keeper connected: nobody has to knock, and its first word is on its way at once.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        link: Link | None = None
        try:
            with theirs:
                options = wire.sealed(orders.guest_options(order))
                try:
                    begun = await self._spawners_of(order.keeper, network).create(message, [options, theirs.fileno()])
                finally:
                    os.close(options)
            link = await Link.begin(ours)
            instance = await self._meet(order, planned, begun, link)
        except BaseException as error:
            link.close() if link else ours.close()
            # Shielded: also a creation that is cancelled, and once more meanwhile, leaves nothing behind.
            await asyncio.shield(self._retreat(planned, begun))
            if isinstance(error, OSError) and not isinstance(error, HutchError):
                raise EngineError(f"box {order.box_id} could not be made: {error}", op="create") from error
            raise
        begun.close()
        return instance

    async def _meet(self, order: Order, planned: InstanceRecord, begun: Begun, link: Link) -> "NativeInstance":
        """The guest's greeting is the first real answer of a box."""
        answer = await asyncio.shield(begun.facts)
        if "box" not in answer:
            raise _failure(order, answer)
        record = planned.but(data={**planned.data, **answer["box"]})
        instance = self._instance(record, order.spec, fresh=True)
        try:
            await instance.meet(link)
        except HutchError as error:
            await instance.close()
            try:
                async with asyncio.timeout(_FAREWELL):
                    failure = await asyncio.shield(begun.failure)
            except TimeoutError:
                raise error from None  # it had become a guest, and broke then
            raise _failure(order, failure) from error
        except BaseException:
            await instance.close()
            raise
        return instance

    async def _retreat(self, planned: InstanceRecord, begun: Begun | None) -> None:
        if begun is not None:
            # The request may still be in the queue: discarding first would leave the box that it becomes.
            try:
                async with asyncio.timeout(_OUTCOME_TIMEOUT):
                    await begun.facts
            finally:
                begun.close()
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
        return await self._images.stand(order.spec.image, order.box_id, places)

    def _spawners_of(self, keeper: str, network: bool = False) -> Spawners:
        """One set for each keeper's name, which is part of the control groups' paths, and one for boxes with a network,
        whatever private ranges each of them may reach: a set is four processes."""
        key = (keeper, network)
        if key not in self._spawners:
            os.makedirs(self._run, 0o700, exist_ok=True)
            name = _group_name(keeper)
            self._spawners[key] = Spawners(
                {
                    "keeper": keeper,
                    "groups": name,
                    "run": self._run,
                    "without": sorted(self._without),
                    "network": network,
                    "proving": False,
                },
                frozenset(self._found().cgroups.controllers),
            )
        return self._spawners[key]

    def _instance(self, record: InstanceRecord, spec: EffectiveSpec, *, fresh: bool = False) -> "NativeInstance":
        """`fresh`: nothing has run in it yet."""
        from hutch.providers.native.instance import NativeInstance  # the first box's process is on its way meanwhile

        path = os.path.join(str(record.data["directory"]), "guest")

        async def connect() -> Link:
            return await Link.connect(path)

        def ceiling(limits: Limits) -> Ceiling:
            return orders.ceiling(limits, persistent=orders.is_persistent(spec))

        async def deputy(user: str) -> Link:
            return await self._deputy(record, spec, user)

        instance = NativeInstance(
            record, spec, connect, lambda: self._group(record, fresh), ceiling, deputy, self._guards, fresh=fresh,
            show=lambda place: self._show(record, place),
        )  # fmt: skip
        self._guard(instance, lived=not fresh or "restored" in record.data)
        return instance

    def _guard(self, box: "NativeInstance", *, lived: bool) -> None:
        """Watch what the kernel does not hold for us."""
        pid, store = box.record.data["pid"], box.record.data.get("store")
        assert isinstance(pid, int)
        try:
            if probing.grades(self._found()).memory_mb is EnforcedBy.WATCHDOG:
                self._guards.watch_memory(box, pid)
            elif box.record.data.get("groups"):
                self._guards.watch_sockets(box)
            if not self._found().cgroups.cpu and not self._found().blind:
                self._guards.watch_cpu(box, pid)
            if isinstance(store, str) and not self._found().blind:
                self._guards.watch_disk(box, pid, store, lived=lived)
        except ProcessLookupError:
            return  # it has just ended, which the link will tell

    async def _deputy(self, record: InstanceRecord, spec: EffectiveSpec, user: str) -> Link:
        """The link to a guest that runs as another user of the box; it is made when first asked for."""
        uid = 0 if user == "root" else int(user) if user.isdecimal() else None
        if uid is None or not self._found().ranged or uid >= identity.RANGE:
            raise Unsupported(
                f"commands cannot run as {user!r} here",
                op="run",
                remedy="use `user`"
                if self._found().ranged
                else "run Hutch as root: one id is all an ordinary user has",
            )
        door = "deputy" if uid == 0 else f"deputy-{uid}"
        path = os.path.join(str(record.data["directory"]), door)
        try:
            return await Link.connect(path)
        except Unavailable:
            await self._enter(record, spec, door, uid)
        return await Link.connect(path)

    async def _enter(self, record: InstanceRecord, spec: EffectiveSpec, door: str, uid: int) -> None:
        facts = ("pid", "start", "boot", "directory", "groups")
        message = {name: record.data[name] for name in facts} | {"door": door, "uid": uid}
        options = wire.sealed(orders.deputy_options(record, spec, uid))
        try:
            answer = await self._spawners_of(record.keeper).enter(message, options)
        finally:
            os.close(options)
        if "ready" not in answer:
            step, error = answer.get("step", ""), answer.get("error", "")
            raise EngineError(
                f"no deputy for user {uid} in box {record.box_id}: {step}: {error}",
                op="run",
                details={"errno": answer.get("errno", "")},
            )

    async def _show(self, record: InstanceRecord, place: CheckedMount) -> None:
        if not self._found().ranged:
            raise Unsupported("only root mounts something in a box that lives", op="show", remedy="make a new box")
        message = {name: record.data[name] for name in ("pid", "start", "boot")} | {"extra": orders.extra(place)}
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
        tree = self._trees.get(record.keeper)
        if tree is None:
            tree = self._trees[record.keeper] = Tree(self._found().cgroups, _group_name(record.keeper))
        try:
            return tree.made(paths) if fresh else tree.open(paths)
        except FileNotFoundError:
            return None

    # --- finding again ---------------------------------------------------------------------------------------

    async def attach(self, record: InstanceRecord, spec: EffectiveSpec) -> "NativeInstance":
        found = cleanup.record_of(record.box_id, self._run, record.keeper)
        if found is not None and "pid" in found.data:
            record = record.but(data={**record.data, **found.data})
        process = cleanup.process_of(record)
        if process is None or not process.alive():
            raise NotFound(f"box {record.box_id} no longer runs", op="attach")
        await self._guards.settled(record.box_id)
        instance = self._instance(record, spec)
        try:
            with contextlib.suppress(Unsupported):
                await instance.resume()  # whoever paused it is gone, and a guest that stands still cannot greet
            await instance.link()
        except (BoxBroken, Unavailable) as error:
            await instance.close()
            # Its spawner may be ending it this moment, because it had not become a guest when its keeper died.
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
        self._guards.forget(record.box_id)
        self._inherited |= all(record.keeper != keeper for keeper, _ in self._spawners)
        await cleanup.discard(record, keep_store=keep_store)
        if not keep_store:
            self._images.leave(record.box_id)

    async def list(self) -> tuple[InstanceRecord, ...]:
        return await asyncio.to_thread(cleanup.records, self._run, self._stores)

    async def sweep(self, *, dry_run: bool = False) -> tuple[Leftover, ...]:
        from hutch.providers.native.network import uplink
        from hutch.providers.native.network.firewall import FirewallError

        if not dry_run:
            await cleanup.sweep(self._run)
        found = await asyncio.to_thread(self._found)
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
        await self._guards.close()
        spawners, self._spawners = self._spawners, {}
        for each in spawners.values():
            await each.close()
        trees, self._trees = self._trees, {}
        # A spawner that was killed leaves its groups, one of them perhaps not yet written down anywhere.
        kept = [tree for tree in trees.values() if not tree.close()]
        if kept or self._inherited or any(each.lost_one for each in spawners.values()):
            await self.sweep()


def _group_name(keeper: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in keeper.lower())[:40].strip("-") or "keeper"


def _failure(order: Order, answer: wire.Message) -> HutchError:
    step, error, number = answer.get("step", ""), answer.get("error", "no reason given"), answer.get("errno", "")
    message = f"box {order.box_id} could not be made: {step}: {error}"
    details = {"step": step, "errno": number}
    if "replaced after it had been allowed" in error or (number == "ELOOP" and "mount" in step):
        return Refused(message, op="create", details=details)
    if step == "cancelled":
        return Unavailable(message, op="create", details=details)
    if step == "spawner":
        return EngineError(message, op="create", details=details, remedy="try again: a new one is started")
    obstacle = obstacles.first()
    remedy = f"{obstacle.reason}: {obstacle.remedy}" if obstacle else "run `hutch doctor`"
    return EngineError(message, op="create", details=details, remedy=remedy)
