"""Which boxes an agent may see and touch: those that its session made or was given. Others need a permission.

A session's own boxes carry its name as a label, which no model can write. Given are its current box (the application
may have chosen it), its owner's default box, and those named to `Tools(boxes=...)`. A given box is used, but it is not
the session's to destroy. For an agent without the permission another session's box does not exist: it is in no list,
and its id, its name and the beginning of its id find nothing.
"""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from hutch.errors import BoxBusy, HutchError, Invalid, NotFound
from hutch.model.boxes import BoxInfo
from hutch.model.spec import EffectiveSpec
from hutch.policy import permissions as rules
from hutch.policy.permissions import AgentPermissions, Decision, Others

if TYPE_CHECKING:
    from hutch.tools.agents import Agent
    from hutch.tools.call import Call

MADE_BY = "tools-session"
"""The label of a box that names the session whose tools made it."""
MAX_LABEL = 128
SHORTEST_PREFIX = 4
"""Of the beginning of an id, as everywhere else that a box is named."""


def marked(spec: Mapping[str, Any], session: str) -> dict[str, Any]:
    """The spec of a box that this session's tools are about to make."""
    return {**spec, "labels": {**(spec.get("labels") or {}), MADE_BY: mark_of(session)}}


def mark_of(session: str) -> str:
    """The session's name as a label can hold it; names that a label cannot hold are told apart by a digest."""
    if len(session) <= MAX_LABEL and session.isprintable():
        return session
    return "#" + hashlib.sha256(session.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def maker_of(spec: EffectiveSpec) -> str:
    """The session whose tools made the box; empty: it was made otherwise."""
    return spec.labels.get(MADE_BY, "")


class Reached(NamedTuple):
    """A box that an agent may touch."""

    info: BoxInfo
    own: bool
    """False: it is another session's, and a permission let the agent reach it."""


async def current_id(agent: "Agent") -> str | None:
    return agent.current.id if agent.current is not None else await agent.hutch.current()


async def own_boxes(agent: "Agent") -> tuple[BoxInfo, ...]:
    """Those in the agent's scope, oldest first: what its session made, holds or was given."""
    current, default = await current_id(agent), await agent.hutch.default()
    return tuple(
        info
        for info in await agent.hutch.boxes()
        if agent.made(info.spec)
        or info.id in agent.held
        or info.id in (current, default)
        or info.id in agent.given
        or (info.name and info.name in agent.given)
    )


async def seen_boxes(call: "Call") -> tuple[BoxInfo, ...]:
    """What `box_query` lists: the agent's own, and with `list_others` everything of its owner."""
    if call.gate.others(Others.LIST) is Decision.DENY:
        return await own_boxes(call.agent)
    await call.gate.reach(Others.LIST, "boxes of other sessions")
    return await call.agent.hutch.boxes()


async def reached(call: "Call", named: str, right: Others | None) -> Reached:
    """The box of that id, beginning of an id, or name. One outside of the agent's scope only by this permission, and
    never if there is none for what it wants to do."""
    if (info := _named(await own_boxes(call.agent), named)) is not None:
        return Reached(info, own=True)
    permitted = right is not None and call.gate.others(right) is not Decision.DENY
    try:
        info = await call.agent.hutch.find(named)
    except NotFound as missing:
        raise _absent(missing.message, missing) from missing
    except Invalid:
        if permitted:
            raise
        raise _absent(f"no box {named}") from None  # the ids that it begins are not this agent's to know
    if right is None or not permitted:
        raise _absent(f"no box {named}")
    await call.gate.reach(right, f"box {info.id}" + (f" ({info.name})" if info.name else ""))
    return Reached(info, own=False)


async def check_destroyable(call: "Call", target: Reached) -> None:
    """What a session has not made itself ends, or changes how long it stays, only with `destroy_others`."""
    if target.own and not call.agent.made(target.info.spec):
        await call.gate.reach(Others.DESTROY, f"box {target.info.id}, which this session has not made")


def whose(info: BoxInfo) -> str:
    """For an agent that reached into another session's box: it must not take the files there for its own."""
    maker = maker_of(info.spec) or (info.lease.holder if info.lease is not None else "")
    belongs = f"belongs to session {maker}" if maker else "was not made by any of these tools"
    return f"box {info.id} {belongs}: its files are another conversation's, not yours"


def advised(error: HutchError, permissions: AgentPermissions) -> HutchError:
    """The error with a remedy that this agent may follow: it never hints at a takeover that is not permitted."""
    if not isinstance(error, BoxBusy):
        return error
    ways = ["wait until its lease ends"]
    named = rules.on_tool(permissions, "box_lifecycle", "takeover").decision
    if Decision.DENY not in (named, permissions.takeover):
        ways.append('take it over: box_lifecycle(action="takeover", box=...)')
    if rules.on_tool(permissions, "box_lifecycle", "create").decision is not Decision.DENY:
        ways.append('work in a box of your own: box_lifecycle(action="create")')
    error.remedy = ", or ".join(ways)
    return error


def _named(boxes: tuple[BoxInfo, ...], text: str) -> BoxInfo | None:
    for info in boxes:
        if text and text in (info.id, info.name):
            return info
    found = [info for info in boxes if len(text) >= SHORTEST_PREFIX and info.id.startswith(text)]
    if len(found) > 1:
        ids = sorted(info.id for info in found)
        raise Invalid(f"{text!r} begins the ids of {len(ids)} boxes", remedy=f"write more of it: {', '.join(ids[:5])}")
    return found[0] if found else None


def _absent(message: str, missing: NotFound | None = None) -> NotFound:
    kind = type(missing) if missing is not None else NotFound
    return kind(message, op="box_lifecycle", remedy='see which there are: box_query(action="list")')
