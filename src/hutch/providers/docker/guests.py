"""The guests of a container: by which lane they are reached, what options they get, and the start of a root guest."""

import json

from hutch.errors import Unavailable, Unsupported
from hutch.linux.processes import Identity, boot_id, start_time
from hutch.model.spec import EffectiveSpec, Order
from hutch.providers.base import InstanceRecord
from hutch.providers.docker import container_spec
from hutch.providers.docker.container_spec import ImageFacts
from hutch.providers.docker.context import EngineContext
from hutch.providers.docker.engine.api import Json
from hutch.providers.docker.engine.dialect import Dialect
from hutch.providers.docker.instance import Reached, Traits
from hutch.providers.docker.lanes import RELAY_USER, ApiLane, FastLane, Lane
from hutch.providers.guest_bundle.counters import BoxCounters, GuestCounters, HostCounters
from hutch.providers.guest_bundle.listener import GUEST_DIR, ROOT_GUEST_DIR
from hutch.providers.guest_client.link import Link

_ID_LETTERS = 64


def identify(context: EngineContext, inspected: Json | None) -> dict[str, str | int | float]:
    """Return the container's first process if we can see it, which decides whether the fast lane is used."""
    state = (inspected or {}).get("State") or {}
    pid = int(state.get("Pid") or 0)
    if not context.fast or not pid or inspected is None:
        return {"lane": "api"}
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            # The whole id must match: with a shorter one an engine could claim a process that is not its own.
            is_there = len(str(inspected["Id"])) == _ID_LETTERS and str(inspected["Id"]) in file.read()
    except OSError:
        is_there = False
    start = start_time(pid)
    if not is_there or start is None:
        return {"lane": "api"}
    return {"lane": "fast", "pid": pid, "start": start, "boot": boot_id()}


def reach(
    context: EngineContext, dialect: Dialect, record: InstanceRecord, spec: EffectiveSpec, options: bytes | None
) -> Reached:
    """Return how a container's guests are reached. `options` are for a guest that was just started."""
    name, data = str(record.data["container"]), record.data
    lane: Lane
    facts: BoxCounters
    if data.get("lane") == "fast":
        pid, start = data["pid"], data["start"]
        assert isinstance(pid, int) and isinstance(start, int)
        lane, facts = FastLane(Identity(pid, start, str(data["boot"]))), HostCounters(pid)
    else:
        # By its id: the container of a box that goes back to a state gets its name when the old one is gone.
        lane, facts = ApiLane(context.engine, str(data.get("id") or name), context.bundle), GuestCounters()
    first_options = options

    async def connect() -> Link:
        nonlocal first_options
        given, first_options = first_options, None
        return await lane.connect(GUEST_DIR, given)

    async def root_guest(user: str) -> Link:
        return await _start_root_guest(context, record, spec, lane, user)

    traits = Traits(
        updates=dialect.updates and not context.machine.is_walled,
        walled=context.machine.is_walled,
        watched=context.machine.is_watched,
        pty=context.pty,
        blind=lane.name != FastLane.name,
    )
    return Reached(record, connect, root_guest, facts, traits)


async def _start_root_guest(
    context: EngineContext, record: InstanceRecord, spec: EffectiveSpec, lane: Lane, user: str
) -> Link:
    """Return a link to the guest that runs as the box's root. An exec of the engine starts it at first use."""
    if user not in ("root", "0"):
        raise Unsupported(
            f"commands cannot run as {user!r} in a container box", op="run", remedy="use `user` or `root`"
        )
    try:
        return await lane.connect(ROOT_GUEST_DIR)
    except Unavailable as error:
        if error.details.get("errno") is None:
            raise
    name = str(record.data["container"])
    argv = context.bundle.argv("hutch.providers.guest_bundle.boot", ROOT_GUEST_DIR, "root")
    image = await context.images.ensure(spec.image)
    options = {
        "box_id": record.box_id,
        "workdir": spec.workdir,
        "env": container_spec.environment(spec, image, record.box_id, user="root"),
        "watched": container_spec.watched(spec.limits) if context.machine.is_watched else None,
    }
    await context.engine.exec_detached(await context.engine.exec_create(name, argv, user=RELAY_USER, attached=False))
    return await lane.connect(ROOT_GUEST_DIR, json.dumps(options).encode())


def guest_options(order: Order, image: ImageFacts, *, watched: bool) -> bytes:
    """Return the guest's `guest.main.Options`. They go over its first connection, because the engine shows a
    container's configuration to everybody who may ask it, and these may hold secrets."""
    spec = order.spec
    return json.dumps(
        {
            "box_id": order.box_id,
            "workdir": spec.workdir,
            "env": container_spec.environment(spec, image, order.box_id),
            "orphan_grace": order.orphan_grace_sec,
            "ttl": spec.ttl_sec,
            "watched": container_spec.watched(spec.limits) if watched else None,
        }
    ).encode()
