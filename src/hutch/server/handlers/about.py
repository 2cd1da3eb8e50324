"""The server itself: status, profiles, providers, volumes, keys, recent errors, metrics, health."""

from typing import Annotated

import msgspec

from hutch.errors import NotFound, Unsupported
from hutch.keeper.boxes.records import LOCAL_OWNER
from hutch.keeper.keys import Key, Role
from hutch.logs import log
from hutch.model.boxes import VolumeInfo
from hutch.model.capabilities import Capabilities
from hutch.model.record import Record
from hutch.model.status import Condition
from hutch.policy.profiles import BUILT_IN, Profile
from hutch.policy.quotas import Quota, quota_of
from hutch.policy.rights import Action, RightsTable, check_table, default_of, require, visible
from hutch.providers import registry
from hutch.server.request import Call, Reply
from hutch.server.service import Failure


class ProfileList(Record, frozen=True, kw_only=True):
    default: str
    profiles: list[Profile]
    quotas: dict[str, Quota]
    """What the boxes of an owner may use together. Callers that see all owners get every quota, of which `*` is for
    owners without one of their own; others get the quota of their owner."""


class ProviderList(Record, frozen=True, kw_only=True):
    default: str
    providers: list[Capabilities]


class VolumeList(Record, frozen=True, kw_only=True):
    volumes: list[VolumeInfo]


class VolumeBody(Record, frozen=True, kw_only=True):
    name: str


class KeyList(Record, frozen=True, kw_only=True):
    keys: tuple[Key, ...]


class KeyBody(Record, frozen=True, kw_only=True):
    role: Role = Role.USER
    owner: str = LOCAL_OWNER
    name: str = ""
    rights: RightsTable = RightsTable()
    """Rights of a key of role user; they restrict the rights of its owner further."""


class NewKey(Record, frozen=True, kw_only=True):
    key: Key
    text: str
    """The key itself, which is shown only once."""


class ErrorsQuery(Record, frozen=True, kw_only=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=500)] = 100


class ErrorList(Record, frozen=True, kw_only=True):
    errors: list[Failure]


class ShutdownBegun(Record, frozen=True, kw_only=True):
    stopping: bool = True


async def status(call: Call) -> Reply:
    """Whether boxes can be created, and if not, why. This call always answers."""
    service, caller = call.service, call.caller
    boxes = tuple(record for record in call.keeper.boxes() if record.owner == caller.owner or caller.over_all)
    found = await call.keeper.views.status(boxes, service.started_at)
    if service.draining.is_set() and found.enabled:
        found = found.but(state=Condition.DRAINING, available=False, reason="the server is stopping")
    return Reply(found)


async def profiles(call: Call) -> Reply:
    """The profiles that the caller may use, as the configuration resolves them, and the quotas that bind it."""
    config, rights, owner = call.service.config, call.caller.rights, call.own.readable
    names = visible((*BUILT_IN, *sorted(config.profiles)), rights)
    found = [config.resolve_profile(name) for name in names]
    quotas = config.quotas if owner is None else {owner: quota_of(config.quotas, owner)}
    return Reply(ProfileList(default=default_of(rights, config.profile), profiles=found, quotas=quotas))


class ProvidersQuery(Record, frozen=True, kw_only=True):
    name: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Ask only this provider: every provider that is asked is tried, and a broken one can take long."""


async def providers(call: Call, query: ProvidersQuery) -> Reply:
    """What each provider can do on this machine, and the reasons for what it cannot do."""
    names = sorted({*registry.names(), call.service.config.provider})
    if query.name:
        if query.name not in names:
            raise NotFound(f"there is no provider {query.name!r}", op=call.op, remedy=f"one of {', '.join(names)}")
        names = [query.name]
    found = [await call.keeper.engines.current_capabilities(name) for name in names]
    return Reply(ProviderList(default=call.service.config.provider, providers=found))


async def list_volumes(call: Call) -> Reply:
    """List the owner's volumes."""
    return Reply(VolumeList(volumes=list(await call.own.volumes.all())))


async def get_volume(call: Call) -> Reply:
    """Return one of the owner's volumes."""
    return Reply(await call.own.volumes.get(call.params["volume"]))


async def create_volume(call: Call, body: VolumeBody) -> Reply:
    """Create an empty volume."""
    require(call.caller.rights, Action.CREATE)
    return Reply(await call.own.volumes.create(body.name), 201)


async def remove_volume(call: Call) -> Reply:
    """Remove a volume and its content; a conflict while a box uses it."""
    require(call.caller.rights, Action.DESTROY)
    await call.own.volumes.remove(call.params["volume"])
    return Reply(status=204)


async def list_keys(call: Call) -> Reply:
    """List every key, also revoked ones, without their text."""
    return Reply(KeyList(keys=await call.service.keys.all()))


async def create_key(call: Call, body: KeyBody) -> Reply:
    """Create a key; its text is shown only once."""
    check_table(body.rights, call.service.config.profiles)
    key, text = await call.service.keys.create(body.role, body.owner, body.name, body.rights)
    log("server").warning("key created", id=key.id, role=str(key.role), owner=key.owner, by=call.caller.key_id)
    return Reply(NewKey(key=key, text=text), 201)


async def revoke_key(call: Call) -> Reply:
    """Revoke a key; revoking it twice is no error. What was begun with it at this server ends: streams, terminals."""
    key = await call.service.keys.revoke(call.params["key"])
    call.end_key(key.id)
    log("server").warning("key revoked", id=key.id, owner=key.owner, by=call.caller.key_id)
    return Reply(key)


async def errors(call: Call, query: ErrorsQuery) -> Reply:
    """List the latest errors of the caller's owner, newest first."""
    caller = call.caller
    own = [each for each in reversed(call.service.failures) if each.owner == caller.owner or caller.over_all]
    return Reply(ErrorList(errors=own[: query.limit]))


async def metrics(call: Call) -> Reply:
    """Metrics of all owners for Prometheus."""
    from hutch.server import exposition  # Importing prometheus-client would slow down every start.

    return Reply(exposition.text(call.service.metrics), type=exposition.CONTENT_TYPE)


async def counts(call: Call) -> Reply:
    """Count what happened to the caller's boxes, per kind and in total, since the server started."""
    return Reply(call.keeper.counters.metrics(call.own.readable, call.keeper.boxes()))


async def shutdown(call: Call) -> Reply:
    """End the server as SIGTERM does: it finishes what runs and leaves its boxes to the next one."""
    stop_requested = call.service.stop_requested
    if stop_requested is None:
        raise Unsupported("this process serves its own boxes and ends by itself", op=call.op)
    log("server").warning("stop requested", by=call.caller.key_id)
    stop_requested.set()
    return Reply(ShutdownBegun(), 202)


async def openapi(call: Call) -> Reply:
    """Describe this API in OpenAPI 3.1."""
    from hutch.server.openapi import encoded  # It imports the route table, which imports this module.

    return Reply(encoded())


async def healthz(call: Call) -> Reply:
    """Answer if this process is alive."""
    return Reply({"ok": True})


async def readyz(call: Call) -> Reply:
    """Whether boxes can be created here now."""
    service = call.service
    found = await call.keeper.views.status((), service.started_at)
    ready = found.available and not service.draining.is_set()
    return Reply({"ready": ready}, 200 if ready else 503)
