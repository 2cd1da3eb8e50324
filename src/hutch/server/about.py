"""What the server tells of itself: status, profiles, providers, volumes, keys, recent errors, numbers, health."""

import time
from collections import Counter
from typing import Annotated

import msgspec

import hutch
from hutch.keeper.keys import Key, Role
from hutch.keeper.records import LOCAL_OWNER
from hutch.keeper.volumes import Volume
from hutch.logs import log
from hutch.model.capabilities import Capabilities
from hutch.model.record import Record
from hutch.policy.profiles import BUILT_IN, Profile
from hutch.providers import registry
from hutch.server.call import Call, Reply
from hutch.server.service import Failure


class Status(Record, frozen=True, kw_only=True):
    """Whether boxes can be made, and if not why not: `disabled`, `unavailable` and `draining` are told apart (B25)."""

    state: str
    """ready | disabled | unavailable | draining"""
    enabled: bool
    available: bool
    reason: str = ""
    remedy: str = ""
    provider: str
    version: str
    keeper: str
    uptime_sec: float
    boxes: dict[str, int]
    """The caller's own, by state."""


class ProfileList(Record, frozen=True, kw_only=True):
    default: str
    profiles: list[Profile]


class ProviderList(Record, frozen=True, kw_only=True):
    default: str
    providers: list[Capabilities]


class VolumeView(Record, frozen=True, kw_only=True):
    """Where it lies on the host is not the caller's business."""

    name: str
    owner: str
    created_at: float


class VolumeList(Record, frozen=True, kw_only=True):
    volumes: list[VolumeView]


class VolumeBody(Record, frozen=True, kw_only=True):
    name: str


class KeyList(Record, frozen=True, kw_only=True):
    keys: tuple[Key, ...]


class KeyBody(Record, frozen=True, kw_only=True):
    role: Role = Role.USER
    owner: str = LOCAL_OWNER
    name: str = ""


class NewKey(Record, frozen=True, kw_only=True):
    key: Key
    text: str
    """Shown this once."""


class ErrorsQuery(Record, frozen=True, kw_only=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=500)] = 100


class ErrorList(Record, frozen=True, kw_only=True):
    errors: list[Failure]


async def status(call: Call) -> Reply:
    """Always answers (lesson 11)."""
    service, caller = call.service, call.caller
    enabled, engine = service.config.enabled, await service.engine()
    draining = service.draining.is_set()
    state = "disabled" if not enabled else "draining" if draining else "ready" if engine.usable else "unavailable"
    reasons = {"disabled": "enabled = false in the configuration", "draining": "the server is about to end"}
    boxes = Counter(
        str(record.state) for record in call.keeper.boxes() if record.owner == caller.owner or caller.over_all
    )
    return Reply(
        Status(
            state=state, enabled=enabled, available=state == "ready", reason=reasons.get(state, engine.reason),
            remedy="set enabled = true" if state == "disabled" else engine.remedy, provider=service.config.provider,
            version=hutch.__version__, keeper=call.keeper.id, uptime_sec=time.time() - service.started_at, boxes=boxes,
        )
    )  # fmt: skip


async def profiles(call: Call) -> Reply:
    config = call.service.config
    names = [*BUILT_IN, *sorted(config.profiles)]
    return Reply(ProfileList(default=config.profile, profiles=[config.resolve_profile(name) for name in names]))


async def providers(call: Call) -> Reply:
    names = sorted({*registry.names(), call.service.config.provider})
    found = [await call.service.engine(name) for name in names]
    return Reply(ProviderList(default=call.service.config.provider, providers=found))


async def list_volumes(call: Call) -> Reply:
    owner = None if call.caller.over_all else call.caller.owner
    return Reply(VolumeList(volumes=[_shown(volume) for volume in await call.keeper.volumes.all(owner)]))


async def create_volume(call: Call, body: VolumeBody) -> Reply:
    return Reply(_shown(await call.keeper.volumes.create(body.name, call.caller.owner)), 201)


async def remove_volume(call: Call) -> Reply:
    owner = call.caller.owner
    sources = {record.spec.workspace.source for record in await call.keeper.store.all() if record.owner == owner}
    in_use = frozenset(source.removeprefix("volume:") for source in sources if source.startswith("volume:"))
    await call.keeper.volumes.remove(call.params["volume"], in_use, owner)
    return Reply(status=204)


async def list_keys(call: Call) -> Reply:
    return Reply(KeyList(keys=await call.service.keys.all()))


async def create_key(call: Call, body: KeyBody) -> Reply:
    key, text = await call.service.keys.create(body.role, body.owner, body.name)
    log("server").warning("key created", id=key.id, role=str(key.role), owner=key.owner, by=call.caller.key_id)
    return Reply(NewKey(key=key, text=text), 201)


async def revoke_key(call: Call) -> Reply:
    key = await call.service.keys.revoke(call.params["key"])
    log("server").warning("key revoked", id=key.id, owner=key.owner, by=call.caller.key_id)
    return Reply(key)


async def errors(call: Call, query: ErrorsQuery) -> Reply:
    """Newest first; those of the caller's owner."""
    caller = call.caller
    own = [each for each in reversed(call.service.failures) if each.owner == caller.owner or caller.over_all]
    return Reply(ErrorList(errors=own[: query.limit]))


async def metrics(call: Call) -> Reply:
    return Reply(call.service.metrics.text().encode(), type="text/plain; version=0.0.4; charset=utf-8")


async def healthz(call: Call) -> Reply:
    """This process answers."""
    return Reply({"ok": True})


async def readyz(call: Call) -> Reply:
    """Boxes can be made here, now."""
    service = call.service
    engine = await service.engine()
    ready = service.config.enabled and engine.usable and not service.draining.is_set()
    return Reply({"ready": ready}, 200 if ready else 503)


def _shown(volume: Volume) -> VolumeView:
    return VolumeView(name=volume.name, owner=volume.owner, created_at=volume.created_at)
