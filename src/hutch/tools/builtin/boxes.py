"""The tools `box_query` and `box_lifecycle`: list boxes, choose the current one, create, release and destroy them."""

import time
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta

from hutch.api import Box
from hutch.errors import Conflict, HutchError, Invalid, NotFound, Refused, Unsupported
from hutch.model.boxes import BoxInfo
from hutch.model.spec import Retention
from hutch.policy.permissions import Others
from hutch.tools.arguments import missing_argument
from hutch.tools.builtin.answers import BoxLifecycleAnswer, BoxQueryAnswer
from hutch.tools.call import Call
from hutch.tools.definition import Arguments, tool
from hutch.tools.guidance import mount_sentences
from hutch.tools.result import ToolResult, answer
from hutch.tools.scope import (
    ReachableBox,
    check_destroyable,
    current_id,
    find_reachable,
    listed_boxes,
    own_boxes,
    ownership_note,
)

TAKEOVER_DESCRIPTION = (
    "With takeover you take a box that another session holds; its files are another conversation's, and that session "
    "loses it."
)
"""Added to the description for agents that may take over boxes."""


class Query(StrEnum):
    LIST = "list"
    CURRENT = "current"
    PROVIDERS = "providers"


class Lifecycle(StrEnum):
    CREATE = "create"
    SWITCH = "switch"
    RELEASE = "release"
    RENEW = "renew"
    SET_RETENTION = "set_retention"
    TAKEOVER = "takeover"
    DESTROY = "destroy"


QUERIES: dict[str, str] = {
    Query.LIST: "your boxes",
    Query.CURRENT: "the one you work in, with its limits and lease",
    Query.PROVIDERS: "the engines that run boxes",
}
LIFECYCLES: dict[str, str] = {
    Lifecycle.CREATE: "a new box, which becomes current (name, profile, retention)",
    Lifecycle.SWITCH: "make another of your boxes current (box)",
    Lifecycle.RELEASE: "give up the lease of a box; it stays until it times out",
    Lifecycle.RENEW: "extend the lease of a box",
    Lifecycle.SET_RETENTION: "persistent boxes keep their files when they are stopped (retention)",
    Lifecycle.TAKEOVER: "take a box that another session holds, which loses it (box)",
    Lifecycle.DESTROY: "end a box with all its files; the one before it becomes current (box)",
}


class BoxQueryArguments(Arguments, frozen=True, kw_only=True):
    action: Query


class BoxLifecycleArguments(Arguments, frozen=True, kw_only=True):
    action: Lifecycle
    box: (
        Annotated[
            str,
            Meta(description="Id, beginning of the id, or name of the box; default: the current one.", max_length=100),
        ]
        | None
    ) = None
    name: Annotated[str, Meta(description="create: a name for the new box.", max_length=63)] | None = None
    profile: Annotated[str, Meta(description="create: which kind of box.", max_length=63)] | None = None
    retention: (
        Annotated[
            Retention,
            Meta(description="create, set_retention: persistent boxes keep their files when they are stopped."),
        ]
        | None
    ) = None


@tool(
    "box_query", BoxQueryArguments, answers=BoxQueryAnswer, example={"action": "list"}, read_only=True,
    action="action", actions=QUERIES,
)  # fmt: skip
async def box_query_tool(call: Call, given: BoxQueryArguments) -> ToolResult:
    """Ask about boxes: list yours, show the current one with its limits and lease, or list the providers."""
    if given.action is Query.PROVIDERS:
        return await _providers(call)
    hutch = call.agent.hutch
    current = await current_id(call.agent)
    if given.action is Query.LIST:
        infos = await listed_boxes(call)
        lines = [_line(info, current, hutch.session) for info in infos] or ["you have no boxes"]
        return answer("\n".join(lines), {"boxes": [facts(info, current, hutch.session) for info in infos]})
    if current is None:
        return answer("you have no current box; the next call makes one", {"box": None})
    try:
        info = await hutch.find(current)
    except NotFound as gone:
        return answer(f"{gone.message}; the next call makes a new box", {"box": None})
    shown = facts(info, current, hutch.session)
    limits = info.spec.limits
    text = (
        f"{_line(info, current, hutch.session)}\n"
        f"limits: {limits.cpus:g} cpus, {limits.memory_mb} MB memory, {limits.disk_mb} MB disk, "
        f"{limits.pids} processes, {limits.timeout_sec:g} s a command (at most {limits.max_timeout_sec:g} s)\n"
        f"network: {info.spec.network}"
    )
    return answer("\n".join((text, *mount_sentences(info.spec.workspace, info.spec.mounts))), {"box": shown})


async def _providers(call: Call) -> ToolResult:
    found = await call.agent.hutch.providers()
    lines = [f"{each.provider}: {'usable' if each.usable else f'not usable: {each.reason}'}" for each in found]
    rows = [
        {
            "provider": each.provider, "usable": each.usable, "reason": each.reason, "isolation": str(each.isolation),
            "pty": each.pty, "persistent": each.persistent, "pause": str(each.pause),
        }
        for each in found
    ]  # fmt: skip
    return answer("\n".join(lines) or "there are no providers", {"providers": rows})


@tool(
    "box_lifecycle",
    BoxLifecycleArguments,
    answers=BoxLifecycleAnswer,
    example={"action": "create", "name": "second"},
    action="action",
    actions=LIFECYCLES,
)
async def box_lifecycle_tool(call: Call, given: BoxLifecycleArguments) -> ToolResult:
    """Manage your boxes: create a new one (it becomes current), switch to another of yours, release one, renew its
    lease, set whether its files are kept (set_retention), destroy one (the one before it becomes current)."""
    return await _ACTIONS[given.action](call, given)


async def _create(call: Call, given: BoxLifecycleArguments) -> ToolResult:
    spec: dict[str, Any] = {}
    if given.profile is not None:
        if given.profile not in call.tools.profiles:
            allowed = ", ".join(call.tools.profiles)
            remedy = f"one of {allowed}" if allowed else "leave profile out"
            raise Refused(f"profile {given.profile!r} is not yours to choose", op="box_lifecycle", remedy=remedy)
        spec["profile"] = given.profile
    if given.name:
        spec["name"] = given.name
    if given.retention is not None:
        spec["retention"] = given.retention
    try:
        box = await call.with_progress(call.agent.create(**spec), "making a box")
    except Conflict as conflict:
        raise await _name_taken(call, conflict, given.name) from conflict
    return await _box_answer(call, box, f"box {box.id} was created and is current now", *(map(str, box.adjustments)))


async def _name_taken(call: Call, conflict: Conflict, name: str | None) -> Conflict:
    """Hide which box has the name if it belongs to another session: the agent learns only that the name is taken."""
    other = conflict.details.get("box")
    if conflict.details.get("name") != name or any(info.id == other for info in await own_boxes(call.agent)):
        return conflict
    return Conflict(f"the name {name} is taken", op="box_lifecycle", remedy="choose another name")


async def _switch(call: Call, given: BoxLifecycleArguments) -> ToolResult:
    info, own = await _named_target(call, given, "switch", Others.TAKEOVER)
    box = await call.agent.switch(info.id)
    return await _box_answer(call, box, f"box {box.id} is current now", *(() if own else (ownership_note(info),)))


async def _takeover(call: Call, given: BoxLifecycleArguments) -> ToolResult:
    info, own = await _named_target(call, given, "takeover", Others.TAKEOVER)
    if own:  # Another session holds the box, and its work there ends with the takeover.
        await call.gate.check_others(Others.TAKEOVER, f"box {info.id}")
    box = await call.agent.switch(info.id, takeover=True)
    text = f"box {box.id} was taken over and is current now; its earlier holder has lost it"
    return await _box_answer(call, box, text, *(() if own else (ownership_note(info),)))


async def _release(call: Call, given: BoxLifecycleArguments) -> ToolResult:
    """End the session's lease. If the box was current, there is no current box until the next call."""
    agent = call.agent
    current = await current_id(agent)
    if given.box is None and current is None:
        return answer("you hold no box", {"box": None})
    box_id = current if given.box is None else (await _own_box(call, given.box)).id
    assert box_id is not None
    await agent.release(box_id)
    if box_id == current:
        await agent.hutch.leave()
    return answer(f"box {box_id} was released", {"box": {"id": box_id, "released": True}})


async def _renew(call: Call, given: BoxLifecycleArguments) -> ToolResult:
    box = await _held_box(call, given)
    await box.renew()
    return await _box_answer(call, box, f"the lease on box {box.id} was renewed")


async def _set_retention(call: Call, given: BoxLifecycleArguments) -> ToolResult:
    if given.retention is None:
        example = {"action": "set_retention", "retention": "persistent"}
        raise missing_argument("box_lifecycle", "retention", given.action, example)
    box = await _held_box(call, given)
    await check_destroyable(call, ReachableBox(await box.info(), own=True))
    if await box.change(retention=given.retention):
        raise Unsupported(
            f"box {box.id} cannot become {given.retention} while it runs",
            op="box_lifecycle",
            remedy=f'create a new box: box_lifecycle(action="create", retention="{given.retention}")',
        )
    return await _box_answer(call, box, f"box {box.id} is {given.retention} now")


async def _destroy(call: Call, given: BoxLifecycleArguments) -> ToolResult:
    target = await _named_target(call, given, "destroy", Others.DESTROY)
    await check_destroyable(call, target)
    agent, box_id = call.agent, target.info.id
    was_current = box_id == await current_id(agent)
    held = agent.held.pop(box_id, None)
    if agent.current is not None and agent.current.id == box_id:
        agent.current = None
    if held is not None:
        await held.destroy()
    else:
        await agent.hutch.destroy(box_id)
    text, facts = f"box {box_id} and its files are gone", {"box": {"id": box_id, "destroyed": True}}
    if not was_current:
        return answer(text, facts)
    await agent.hutch.leave()
    back = await agent.restore_previous_box([info.id for info in await own_boxes(agent) if agent.created(info.spec)])
    return answer(f"{text}; box {back.id} is current again" if back is not None else text, facts)


_ACTIONS = {
    Lifecycle.CREATE: _create,
    Lifecycle.SWITCH: _switch,
    Lifecycle.RELEASE: _release,
    Lifecycle.RENEW: _renew,
    Lifecycle.SET_RETENTION: _set_retention,
    Lifecycle.TAKEOVER: _takeover,
    Lifecycle.DESTROY: _destroy,
}


async def _own_box(call: Call, named: str) -> BoxInfo:
    """Find a box in the agent's own scope. No permission extends it here."""
    return (await find_reachable(call, named, None)).info


async def _named_target(call: Call, given: BoxLifecycleArguments, action: str, right: Others) -> ReachableBox:
    """Find the named box. The name is required, so that nothing is destroyed because an argument was left out."""
    if given.box is None:
        raise missing_argument("box_lifecycle", "box", action, {"action": action, "box": "k3x7…"})
    return await find_reachable(call, given.box, right)


async def _held_box(call: Call, given: BoxLifecycleArguments) -> Box:
    """Return a box that this agent holds: the named one or the current one. No box is created for it."""
    agent = call.agent
    wanted = await current_id(agent) if given.box is None else (await _own_box(call, given.box)).id
    if wanted is None:
        raise Invalid(
            "you hold no box", op="box_lifecycle", remedy='switch to one, or create one: box_lifecycle(action="create")'
        )
    if (held := agent.held.get(wanted)) is not None:
        return held
    if given.box is None:  # It is still current, although the agent's lease was released after a long silence.
        return await agent.switch(wanted)
    raise Invalid(
        f"you do not hold box {wanted}",
        op="box_lifecycle",
        remedy=f'box_lifecycle(action="switch", box="{wanted}") first',
    )


async def _box_answer(call: Call, box: Box, text: str, *notes: str) -> ToolResult:
    try:
        info = await box.info()
    except HutchError as error:
        return answer(text, {"box": {"id": box.id}}, *notes, error.message)
    return answer(text, {"box": facts(info, box.id, call.agent.hutch.session)}, *notes)


def facts(info: BoxInfo, current: str | None, session: str) -> dict[str, Any]:
    """Describe a box for a model, without facts about the host or names of other sessions."""
    now = time.time()
    spec = info.spec
    shown: dict[str, Any] = {
        "id": info.id, "name": info.name, "state": str(info.state), "reason": info.reason,
        "current": info.id == current, "provider": info.provider, "profile": spec.profile, "network": str(spec.network),
        "workdir": spec.workdir, "retention": str(spec.retention), "limits": spec.limits.to_plain(),
        "created_sec_ago": round(now - info.created_at), "used_sec_ago": round(now - info.used_at),
        "remaining_sec": None if info.remaining_sec is None else round(info.remaining_sec), "held_by": "nobody",
    }  # fmt: skip
    lease = info.lease
    if lease is not None:
        left = lease.expires_in_sec(now)
        shown |= {
            "held_by": "you" if lease.holder == session else "another session",
            "lease_expires_at": lease.expires_at or None,
            "lease_expires_in_seconds": None if left is None else round(left),
            "auto_renew_interval_seconds": lease.auto_renew_sec,
        }
    return shown


def _line(info: BoxInfo, current: str | None, session: str) -> str:
    shown = facts(info, current, session)
    name = f" ({info.name})" if info.name else ""
    here = " [current]" if shown["current"] else ""
    return f"{info.id}{name}{here}: {info.state}, {info.spec.profile}, held by {shown['held_by']}"
