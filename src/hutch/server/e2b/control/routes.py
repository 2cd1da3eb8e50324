"""The control plane: create, connect, list, inspect, pause and kill sandboxes, and set their end."""

import math
import re
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

import msgspec

from hutch.errors import Conflict, Invalid, NotFound, Unsupported
from hutch.keeper.boxes.live import Live
from hutch.keeper.boxes.records import BoxRecord
from hutch.model.boxes import State
from hutch.model.record import encode_json
from hutch.model.spec import VOLUME, EffectiveSpec, Mount, MountMode, NetworkMode, Spec, TtlAction, volume_of
from hutch.policy.rights import Action, require
from hutch.server.access import hold, refuse_if_busy
from hutch.server.e2b import labels, ports, volumes
from hutch.server.e2b.control import shapes, snapshots, templates
from hutch.server.e2b.control.metrics import list_metrics
from hutch.server.e2b.control.shapes import (
    DEFAULT_TIMEOUT,
    DEFAULT_TIMEOUT_V1,
    ENVD_VERSION,
    ListedSandbox,
    NewSandbox,
    Sandbox,
    page_of,
)
from hutch.server.e2b.errors import Answer
from hutch.server.e2b.labels import SESSION
from hutch.server.e2b.requests import Request

JSON = (("content-type", "application/json"),)
PAUSED_DAYS = 30
MAX_KEY = 255
"""The characters that the SDKs allow in an Idempotency-Key."""
ALL_TRAFFIC = "0.0.0.0/0"
_LIST_QUERY = frozenset({"metadata", "state", "order", "startedAfter", "template", "limit", "nextToken"})
_ON_TIMEOUT = {TtlAction.DESTROY: "kill", TtlAction.PAUSE: "pause", TtlAction.HALT: "pause"}

Handler = Callable[[Request], Awaitable[Answer]]


class Route(NamedTuple):
    method: str
    path: re.Pattern[str]
    handler: Handler


def answer(body: object, status: int = 200, *headers: tuple[str, str]) -> Answer:
    return Answer(status, encode_json(body), (*JSON, *headers))


async def serve(request: Request) -> Answer:
    """Answer a request of the control plane."""
    known = False
    for route in _ROUTES:
        match = route.path.fullmatch(request.path)
        if match is None:
            continue
        known = True
        if route.method == request.method:
            if "sandbox" in match.groupdict():
                request.name_sandbox(unquote(match["sandbox"]))
            return await route.handler(request)
    if known:
        raise NotFound(f"{request.method} {request.path} is no call of this API")
    raise Unsupported(
        f"{request.method} {request.path} is not a part of the E2B protocol that this server speaks",
        remedy="docs/guides/e2b.md lists what it speaks",
    )


# --- creating -------------------------------------------------------------------------------------------------


async def create(request: Request) -> Answer:
    """Create a sandbox: a box that ends, or pauses, when its timeout is over."""
    body = await request.body(NewSandbox)
    refuse_unenforced(body)
    default = DEFAULT_TIMEOUT if request.path.startswith("/v2/") else DEFAULT_TIMEOUT_V1
    timeout = default if body.timeout is None else body.timeout
    if timeout < 1:
        raise Invalid("Timeout must be at least 1 second")
    call = request.call
    if (forked := await _from_snapshot(request, body, timeout)) is not None:
        return answer(await sandbox_of(request, forked), 201)
    spec = await _spec(request, body, timeout)
    key = call.header("idempotency-key")
    if len(key) > MAX_KEY:
        raise Invalid(f"Idempotency-Key has at most {MAX_KEY} characters")
    caller = call.caller
    record = await call.service.keeper.creations.create(
        spec, session=SESSION, owner=caller.owner, key=f"e2b:{key}" if key else ""
    )
    access = call.service.previews.access
    if not key or not await access.of_box(record.id):
        await ports.open_ports(access, record, public=record.spec.labels.get(labels.TRAFFIC) != labels.PRIVATE)
    return answer(await sandbox_of(request, record), 201)


async def _from_snapshot(request: Request, body: NewSandbox, timeout: int) -> BoxRecord | None:
    """Create a sandbox with the files of a snapshot, like the one that it was made of; None if there is none."""
    live = await snapshots.fork_snapshot(request, body.template_id)
    if live is None:
        return None
    try:
        spec = live.record.spec
        online = spec.network is not NetworkMode.OFF
        if body.env_vars or body.volume_mounts or _wants_internet(body) not in (None, online):
            raise Unsupported(
                "a sandbox from a snapshot has the variables, the volumes and the network of the one that the snapshot "
                "was made of",
                remedy="leave them out, and pass variables to each command",
            )
        if request.call.header("idempotency-key"):
            raise Unsupported("an Idempotency-Key does not hold for snapshots here", remedy="leave it out")
        wanted = {**labels.of_metadata(body.metadata or {}), **_own_labels(body, timeout)}
        action = _ttl_action(body)
        await request.sandboxes.relabel(live, wanted, ttl_sec=float(timeout), action=action)
        access = request.call.service.previews.access
        await ports.open_ports(access, live.record, public=wanted.get(labels.TRAFFIC) != labels.PRIVATE)
    except BaseException:
        await request.call.keeper.destroy(live.record.id, "its creation from a snapshot failed")
        raise
    return live.record


def refuse_unenforced(body: NewSandbox) -> None:
    """Refuse every option that nothing here would enforce. `mcp` only tells the server what the SDK does next."""
    if body.iam:
        raise Unsupported("iam is not supported by this server", remedy="leave out iam")
    if body.network is not None:
        _refuse_rules(body.network)
    resumes = body.auto_resume is not None and body.auto_resume.enabled
    if resumes and not body.auto_pause:
        raise Invalid("auto-resume needs a sandbox that is paused at its timeout")
    if resumes and body.auto_pause_memory is False:
        raise Invalid("auto-resume needs a sandbox that keeps its memory when it is paused")


def _refuse_rules(network: shapes.Network) -> None:
    """Refuse every rule of the network but one: that nothing goes out."""
    rules = ("allow_out", "rules", "egress_proxy", "dns_servers", "https_ports")
    for name in [name for name in rules if getattr(network, name)]:
        raise Unsupported(f"network.{name} is not supported by this server", remedy=f"leave out {name}")
    if network.deny_out and set(network.deny_out) != {ALL_TRAFFIC}:
        raise Unsupported("network.deny_out can only deny everything here", remedy=f"deny {ALL_TRAFFIC}, or nothing")


def _wants_internet(body: NewSandbox) -> bool | None:
    """Whether the caller wants the sandbox to reach the internet; None if the request does not say."""
    if body.network is not None and body.network.deny_out:
        return False
    return body.allow_internet_access


def _own_labels(body: NewSandbox, timeout: int) -> dict[str, str]:
    given = {
        labels.TEMPLATE: body.template_id, labels.TIMEOUT: str(timeout),
        labels.AUTO_RESUME: "yes" if body.auto_resume is not None and body.auto_resume.enabled else "no",
    }  # fmt: skip
    if body.network is not None and body.network.mask_request_host:
        given[labels.MASKED_HOST] = body.network.mask_request_host
    if body.network is not None and body.network.allow_public_traffic is False:
        given[labels.TRAFFIC] = labels.PRIVATE
    return given


def _ttl_action(body: NewSandbox) -> TtlAction:
    if not body.auto_pause:
        return TtlAction.DESTROY
    return TtlAction.HALT if body.auto_pause_memory is False else TtlAction.PAUSE


async def _spec(request: Request, body: NewSandbox, timeout: int) -> Spec:
    spec = await templates.resolve(request.call.keeper, body.template_id)
    env = {**(body.env_vars or {}), "E2B_SANDBOX": "true", "E2B_TEMPLATE_ID": body.template_id}
    wanted = {**labels.of_metadata(body.metadata or {}), **_own_labels(body, timeout)}
    spec = spec.but(
        env=env, labels=wanted, ttl_sec=float(timeout),
        ttl_action=_ttl_action(body), idle_timeout_sec=0.0,
    )  # fmt: skip
    if (online := _wants_internet(body)) is not None:
        spec = spec.but(network=NetworkMode.ON if online else NetworkMode.OFF)
    if body.volume_mounts:
        mounts = (Mount(source=VOLUME + each.name, target=each.path, mode=MountMode.RW) for each in body.volume_mounts)
        spec = spec.but(mounts=tuple(mounts))
    return spec


async def connect(request: Request) -> Answer:
    """Return a running sandbox, or resume a paused one. The end of a running one is never moved to an earlier time."""
    body = await request.body(shapes.ConnectSandbox)
    live = await _held(request)
    default = DEFAULT_TIMEOUT if request.path.startswith("/v2/") else DEFAULT_TIMEOUT_V1
    timeout = default if body.timeout is None else body.timeout
    if live.record.state is State.PAUSED:
        await request.sandboxes.resume(live, timeout)
        if body.memory is False:
            await live.running.reboot()
            request.sandboxes.sudo.forget(live.record.id)
        return answer(await sandbox_of(request, live.record), 201)
    if live.record.state is not State.RUNNING:
        raise NotFound(f"sandbox {live.record.id} is {live.record.state}")
    wanted = time.time() + timeout
    if wanted > _end_of(live.record):
        await request.sandboxes.set_end(live, wanted)
    return answer(await sandbox_of(request, live.record), 200)


async def sandbox_of(request: Request, record: BoxRecord) -> Sandbox:
    template = record.spec.labels[labels.TEMPLATE]
    return Sandbox(
        template_id=template, sandbox_id=record.id, alias=template,
        envd_access_token=request.sandboxes.tokens.of(record.id, request.call.caller.key_id),
        traffic_access_token=await ports.traffic_token(request.call.service.previews.access, record),
        domain=ports.domain_of(request.call.service.previews.hosts),
    )  # fmt: skip


# --- looking --------------------------------------------------------------------------------------------------


async def info(request: Request) -> Answer:
    """Describe one sandbox."""
    record = (await request.find()).record
    token = request.sandboxes.tokens.of(record.id, request.call.caller.key_id)
    spec = record.spec
    detail = msgspec.structs.replace(
        _listed(record), envd_access_token=token, domain=ports.domain_of(request.call.service.previews.hosts),
        allow_internet_access=spec.network is not NetworkMode.OFF,
        lifecycle=shapes.Lifecycle(
            auto_resume=labels.resumes_by_itself(record), on_timeout=_ON_TIMEOUT[spec.ttl_action]
        ),
    )  # fmt: skip
    return answer(detail)


async def list_sandboxes(request: Request) -> Answer:
    """List the owner's sandboxes, newest first, by page. The token of the next page is the last id of this one."""
    query = request.query
    _check_query(query)
    found = [record for record in await _records(request) if _matches(record, query)]
    found.sort(key=lambda record: (record.created_at, record.id), reverse=query.get("order", "desc") != "asc")
    page, token = page_of(found, query)
    headers = (("x-next-token", token),) if token else ()
    return answer([_listed(record) for record in page], 200, *headers)


async def _records(request: Request) -> list[BoxRecord]:
    """Return the owner's sandboxes, whichever server keeps them."""
    return [
        record
        for record in await request.call.keeper.store.by_prefix(request.call.caller.owner, "")
        if labels.TEMPLATE in record.spec.labels and not record.doomed
        and record.state in (State.RUNNING, State.PAUSED)
    ]  # fmt: skip


def _check_query(query: dict[str, str]) -> None:
    """Refuse a filter that would not be applied."""
    if surplus := query.keys() - _LIST_QUERY:
        raise Invalid(f"the list has no parameter {min(surplus)[:40]!r}")
    if query.get("order", "desc") not in ("asc", "desc"):
        raise Invalid("order is asc or desc")
    if not set(query.get("state", "").split(",")) <= {"", "running", "paused"}:
        raise Invalid("state is running or paused, or both with a comma")


def _matches(record: BoxRecord, query: dict[str, str]) -> bool:
    states = query.get("state", "")
    if states and _state(record) not in states.split(","):
        return False
    if (template := query.get("template")) and record.spec.labels[labels.TEMPLATE] != template:
        return False
    if (after := query.get("startedAfter")) and record.created_at <= _timestamp(after):
        return False
    # The SDKs encode keys and values before they encode the whole.
    wanted = parse_qsl(query.get("metadata", ""), keep_blank_values=True)
    metadata = labels.metadata_of(record)
    return all(metadata.get(unquote(key)) == unquote(value) for key, value in wanted)


def _timestamp(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError) as error:
        raise Invalid(f"startedAfter {text[:40]!r} is no time of RFC 3339") from error


def _listed(record: BoxRecord) -> ListedSandbox:
    spec = record.spec
    template = spec.labels[labels.TEMPLATE]
    return ListedSandbox(
        template_id=template, sandbox_id=record.id, client_id="hutch", alias=template,
        started_at=_rfc3339(record.created_at), end_at=_rfc3339(_end_of(record)),
        cpu_count=max(1, math.ceil(spec.limits.cpus)), memory_mb=spec.limits.memory_mb,
        disk_size_mb=spec.limits.disk_mb, state=_state(record), envd_version=ENVD_VERSION,
        metadata=labels.metadata_of(record), volume_mounts=_volume_mounts(spec) or msgspec.UNSET,
    )  # fmt: skip


def _volume_mounts(spec: EffectiveSpec) -> list[shapes.VolumeMount]:
    mounts = ((volume_of(mount.source), mount.target) for mount in spec.mounts)
    return [shapes.VolumeMount(name, target) for name, target in mounts if name is not None]


def _state(record: BoxRecord) -> str:
    return "paused" if record.state is State.PAUSED else "running"


def _end_of(record: BoxRecord) -> float:
    """Return when the sandbox ends. A paused one has no end, but the protocol requires a time."""
    if record.spec.ttl_sec:
        return record.created_at + record.spec.ttl_sec
    return record.created_at + PAUSED_DAYS * 86400.0


def _rfc3339(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# --- changing and ending --------------------------------------------------------------------------------------


async def _held(request: Request) -> Live:
    """Return the sandbox of the request, and hold its lease."""
    live = await request.find()
    await hold(request.call.keeper, live, SESSION)
    return live


async def set_timeout(request: Request) -> Answer:
    """Let the sandbox end so many seconds from now; 0 ends it at once."""
    body = await request.body(shapes.TimeoutBody)
    live = await _held(request)
    await request.sandboxes.set_end(live, time.time() + body.timeout)
    return Answer(204)


async def pause(request: Request) -> Answer:
    """Freeze the sandbox, with its memory or only with its files. 409 if it is paused already."""
    body = await request.body(shapes.PauseBody)
    live = await _held(request)
    if live.record.state is State.PAUSED:
        raise Conflict(f"Sandbox {live.record.id} is already paused")
    if body.require_healthy_guest:
        await request.sandboxes.check_guest(live)
    await request.sandboxes.pause(live, halt=body.memory is False)
    return Answer(204)


async def resume(request: Request) -> Answer:
    """Resume a paused sandbox, as early releases of the SDK ask for it. 409 if it runs."""
    body = await request.body(shapes.ResumeSandbox)
    live = await _held(request)
    if live.record.state is not State.PAUSED:
        raise Conflict(f"Sandbox {live.record.id} is already running")
    await request.sandboxes.resume(live, DEFAULT_TIMEOUT_V1 if body.timeout is None else body.timeout)
    if body.auto_pause is not None:
        action = TtlAction.PAUSE if body.auto_pause else TtlAction.DESTROY
        await request.call.keeper.updater.set_ttl(live, live.record.spec.ttl_sec, action)
    return answer(await sandbox_of(request, live.record), 201)


async def kill(request: Request) -> Answer:
    """End the sandbox, paused or not."""
    call = request.call
    require(call.caller.rights, Action.DESTROY)
    live = await request.find()
    call.caller = call.caller.but(session=SESSION)

    def check_holder(live: Live) -> bool:
        refuse_if_busy(call, live)
        return False

    box_id, ending = live.record.id, request.sandboxes.ending
    refuse_if_busy(call, live)
    ending.add(box_id)
    try:
        await request.sandboxes.streams.cut(box_id)
        await call.keeper.destroy(box_id, f"killed by an E2B client with key {call.caller.key_id}", unless=check_holder)
    finally:
        ending.discard(box_id)
    return Answer(204)


async def template_exists(request: Request) -> Answer:
    """Tell whether a template of this name exists."""
    alias = unquote(request.path.rpartition("/")[2])
    await templates.resolve(request.call.keeper, alias)
    return answer({"templateID": alias, "public": True})


def _route(method: str, path: str, handler: Handler) -> Route:
    return Route(method, re.compile(path.replace("{sandbox}", "(?P<sandbox>[^/]+)").replace("{any}", "[^/]+")), handler)


_ROUTES = (
    _route("POST", "(/v2)?/sandboxes", create),
    _route("GET", "(/v2)?/sandboxes", list_sandboxes),
    _route("POST", "(/v2)?/sandboxes/{sandbox}/connect", connect),
    _route("GET", "/sandboxes/{sandbox}", info),
    _route("DELETE", "/sandboxes/{sandbox}", kill),
    _route("POST", "/sandboxes/{sandbox}/timeout", set_timeout),
    _route("POST", "/sandboxes/{sandbox}/pause", pause),
    _route("POST", "/sandboxes/{sandbox}/resume", resume),
    _route("POST", "/sandboxes/{sandbox}/fork", snapshots.fork),
    _route("POST", "/sandboxes/{sandbox}/snapshots", snapshots.create),
    _route("GET", "/snapshots", snapshots.list_snapshots),
    _route("DELETE", "/templates/{any}", snapshots.delete),
    _route("GET", "/sandboxes/{sandbox}/metrics", list_metrics),
    _route("GET", "/templates/aliases/{any}", template_exists),
    _route("GET", "/volumes", volumes.list_volumes),
    _route("POST", "/volumes", volumes.create),
    _route("GET", "/volumes/{any}", volumes.info),
    _route("DELETE", "/volumes/{any}", volumes.delete),
)
