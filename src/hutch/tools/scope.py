"""Which boxes an agent may see and use: those that its session created or was given. Others need a permission.

A session's own boxes carry its name as a label, which no model can write. Given boxes are the current box (the
application may have chosen it), the owner's default box, and those passed to `Tools(boxes=...)`. An agent may use a
given box but not destroy it. Without a permission, boxes of other sessions do not exist for an agent: no list shows
them, and neither their id, its beginning, nor their name finds them.
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

CREATOR_LABEL = "tools-session"
"""Label that names the session whose tools created the box."""
MAX_LABEL = 128
MIN_ID_PREFIX = 4
"""Shortest beginning of an id that identifies a box, here as everywhere else."""


def labelled_spec(spec: Mapping[str, Any], session: str) -> dict[str, Any]:
    """Return the spec of a new box with the label of the session whose tools create it."""
    return {**spec, "labels": {**(spec.get("labels") or {}), CREATOR_LABEL: session_label(session)}}


def session_label(session: str) -> str:
    """Return the session's name as a label value. A digest replaces names that a label cannot hold."""
    if len(session) <= MAX_LABEL and session.isprintable():
        return session
    return "#" + hashlib.sha256(session.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def creator_label(spec: EffectiveSpec) -> str:
    """Return the label of the session whose tools created the box, or empty if no tool did."""
    return spec.labels.get(CREATOR_LABEL, "")


class ReachableBox(NamedTuple):
    """A box that an agent may use."""

    info: BoxInfo
    own: bool
    """False if the box belongs to another session and a permission allows its use."""


async def current_id(agent: "Agent") -> str | None:
    return agent.current.id if agent.current is not None else await agent.hutch.current()


async def own_boxes(agent: "Agent") -> tuple[BoxInfo, ...]:
    """Return the boxes that the agent's session created, holds or was given, oldest first."""
    current, default = await current_id(agent), await agent.hutch.default()
    return tuple(
        info
        for info in await agent.hutch.boxes()
        if agent.created(info.spec)
        or info.id in agent.held
        or info.id in (current, default)
        or info.id in agent.given_boxes
        or (info.name and info.name in agent.given_boxes)
    )


async def listed_boxes(call: "Call") -> tuple[BoxInfo, ...]:
    """Return the boxes that `box_query` lists: the agent's own, or with `list_others` all of its owner."""
    if call.gate.decision_on_others(Others.LIST) is Decision.DENY:
        return await own_boxes(call.agent)
    await call.gate.check_others(Others.LIST, "boxes of other sessions")
    return await call.agent.hutch.boxes()


async def find_reachable(call: "Call", named: str, right: Others | None) -> ReachableBox:
    """Find a box by its id, the beginning of its id, or its name.

    A box outside of the agent's scope is found only if the permission `right` allows it; None allows none.
    """
    if (info := _match(await own_boxes(call.agent), named)) is not None:
        return ReachableBox(info, own=True)
    permitted = right is not None and call.gate.decision_on_others(right) is not Decision.DENY
    try:
        info = await call.agent.hutch.find(named)
    except NotFound as missing:
        raise _not_found_error(missing.message, missing) from missing
    except Invalid:
        if permitted:
            raise
        raise _not_found_error(f"no box {named}") from None  # The agent must not learn the ids that begin like this.
    if right is None or not permitted:
        raise _not_found_error(f"no box {named}")
    await call.gate.check_others(right, f"box {info.id}" + (f" ({info.name})" if info.name else ""))
    return ReachableBox(info, own=False)


async def check_destroyable(call: "Call", target: ReachableBox) -> None:
    """Require `destroy_others` before a box that the session did not create is destroyed or its retention changes."""
    if target.own and not call.agent.created(target.info.spec):
        await call.gate.check_others(Others.DESTROY, f"box {target.info.id}, which this session has not made")


def ownership_note(info: BoxInfo) -> str:
    """Return a note about the owner of another session's box, so that the agent does not take its files for its own."""
    creator = creator_label(info.spec) or (info.lease.holder if info.lease is not None else "")
    belongs = f"belongs to session {creator}" if creator else "was not made by any of these tools"
    return f"box {info.id} {belongs}: its files are another conversation's, not yours"


def with_permitted_remedy(error: HutchError, permissions: AgentPermissions) -> HutchError:
    """Return the error with a remedy that this agent may follow. It never suggests a takeover that is not permitted."""
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


def _match(boxes: tuple[BoxInfo, ...], text: str) -> BoxInfo | None:
    for info in boxes:
        if text and text in (info.id, info.name):
            return info
    found = [info for info in boxes if len(text) >= MIN_ID_PREFIX and info.id.startswith(text)]
    if len(found) > 1:
        ids = sorted(info.id for info in found)
        raise Invalid(f"{text!r} begins the ids of {len(ids)} boxes", remedy=f"write more of it: {', '.join(ids[:5])}")
    return found[0] if found else None


def _not_found_error(message: str, missing: NotFound | None = None) -> NotFound:
    kind = type(missing) if missing is not None else NotFound
    return kind(message, op="box_lifecycle", remedy='see which there are: box_query(action="list")')
