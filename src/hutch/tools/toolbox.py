"""`Tools`, the dispatcher: it finds a tool, decodes its arguments, checks permissions, runs it and returns data."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hutch.api import Hutch, Skills
from hutch.errors import Disabled, HutchError, NotFound
from hutch.logs import log, operation
from hutch.model.record import Record
from hutch.model.spec import EffectiveSpec
from hutch.model.status import Status
from hutch.policy import permissions as rules
from hutch.policy.permissions import AgentPermissions, Decision
from hutch.tools.agents import Agent, session_for_agent
from hutch.tools.arguments import as_mapping, decode_arguments
from hutch.tools.attachments import Attachments
from hutch.tools.builtin.box_operation import box_operation_tool
from hutch.tools.builtin.boxes import TAKEOVER_DESCRIPTION, Lifecycle, box_lifecycle_tool, box_query_tool
from hutch.tools.builtin.exec import exec_tool
from hutch.tools.builtin.jobs import job_tool
from hutch.tools.builtin.output import OUTPUT_BYTES
from hutch.tools.builtin.python import python_tool
from hutch.tools.builtin.read import read_tool
from hutch.tools.builtin.search import glob_tool, grep_tool
from hutch.tools.builtin.send_file import send_file_tool
from hutch.tools.builtin.skills import activate_skill_tool, list_skills_tool, skill_tools
from hutch.tools.builtin.write import edit_tool, write_tool
from hutch.tools.call import Call, Progress
from hutch.tools.definition import Tool
from hutch.tools.gate import Ask, Gate
from hutch.tools.guidance import guidance, spec_of, timeout_sentence
from hutch.tools.provider_tools import ProviderKit, installed_kits
from hutch.tools.result import ToolResult, error_result, with_notes
from hutch.tools.schemas import View, render_schemas
from hutch.tools.scope import with_permitted_remedy

TOOLS: tuple[Tool, ...] = (
    exec_tool, python_tool, job_tool, read_tool, write_tool, edit_tool, glob_tool, grep_tool, send_file_tool,
    box_query_tool, box_lifecycle_tool, box_operation_tool, list_skills_tool, activate_skill_tool,
)  # fmt: skip

SKILL_TOOLS = frozenset({"list_skills", "activate_skill"})
"""Tools that are hidden if the Hutch keeps no skills."""


HOLD_SECONDS = 600.0
"""After this silence an agent's leases are released, so that the idle timeouts of its boxes run again."""
STATUS_CACHE_SECONDS = 5.0
"""Time for which an answer about the engines is reused."""

_log = log("tools")


class ToolsStatus(Record, frozen=True, kw_only=True):
    """The tools that an agent has now, and why it lacks the others."""

    available: bool
    state: str
    reason: str = ""
    remedy: str = ""
    tools: tuple[str, ...] = ()
    origins: dict[str, str] = msgspec.field(default_factory=dict)
    """Origin of tools that are not built in: `provider:NAME` or `skill:NAME`."""
    hidden: dict[str, str] = msgspec.field(default_factory=dict)
    """Maps each missing tool to the reason."""


class Tools:
    """The tools of one `Hutch`, for any number of agents."""

    def __init__(
        self,
        hutch: Hutch,
        *,
        permissions: Mapping[str, AgentPermissions] | AgentPermissions | None = None,
        ask: Ask | None = None,
        skills: Skills | None = None,
        agent: str = "main",
        spec: Mapping[str, Any] | None = None,
        profiles: Sequence[str] = (),
        boxes: Sequence[str] = (),
        provider_tools: Mapping[str, ProviderKit] | None = None,
        output_bytes: int = OUTPUT_BYTES,
        hold_sec: float = HOLD_SECONDS,
    ) -> None:
        """Create the tools.

        Args:
            spec: Spec of the boxes that calls create.
            profiles: Profiles that a model may choose from. Without any it cannot choose.
            boxes: Ids or names of boxes that agents may use besides those that their sessions create.
        """
        self.hutch = hutch
        self.ask = ask
        self.skills = skills if skills is not None else _skills_of(hutch)
        self.default_agent = agent
        self.spec = dict(spec or {})
        self.profiles = tuple(profiles)
        self.boxes = tuple(boxes)
        self.provider_tools = installed_kits() if provider_tools is None else dict(provider_tools)
        self.output_bytes = output_bytes
        self.hold_sec = hold_sec
        self.attachments = Attachments()
        if isinstance(permissions, AgentPermissions):
            permissions = {rules.EVERYBODY: permissions}
        if permissions is None:
            # The rules of the operator's hutch.toml apply even if the application does not pass them on.
            permissions = getattr(getattr(hutch, "config", None), "permissions", None)
        # Converted once more, so that a rule given as plain text decides like one given as an enum.
        self._permissions = {
            name: AgentPermissions.from_plain(each.to_plain()) for name, each in (permissions or {}).items()
        }
        for name, each in self._permissions.items():
            rules.check(name, each)
        self._agents: dict[str, Agent] = {}
        self._cached_status: tuple[float, Status] | None = None
        self._release_task: asyncio.Task[None] | None = None

    # --- calling ----------------------------------------------------------------------------------------------

    async def call(
        self, name: str, arguments: object = None, *, agent: str | None = None, progress: Progress | None = None,
        message: str = "",
    ) -> ToolResult:  # fmt: skip
        """Run a tool. Errors of the model or the box are returned as data. Cancellation kills the command."""
        who = self.agent(agent)
        notes: list[str] = []
        who.busy += 1
        try:
            with operation():
                result = await self._dispatch(who, str(name), arguments, progress, message, notes)
        except HutchError as error:
            result = error_result(with_permitted_remedy(error, self.permissions(who.name)))
        except Exception as error:  # The boundary to the model: log our defect and report it.
            _log.error("a tool broke", tool=name, agent=who.name, error=error)
            result = error_result(
                HutchError(
                    f"{name} failed inside Hutch: {type(error).__name__}", remedy="try another way, or tell the user"
                )
            )
        finally:
            who.busy -= 1
            who.last_used = time.monotonic()
            self._schedule_release()
        return with_notes(result, notes)

    async def _dispatch(
        self, who: Agent, name: str, arguments: object, progress: Progress | None, message: str, notes: list[str]
    ) -> ToolResult:
        tool = await self._find(name, who)
        given = as_mapping(tool, arguments)
        record = decode_arguments(tool, given) if tool.arguments is not None else given
        action = str(getattr(record, tool.action)) if tool.action else ""
        gate = Gate(who, self.permissions(who.name), self.ask, tool.name, action, given)
        await gate.enter(decided_later=tool.settles)
        call = Call(self, who, gate, progress, message)
        try:
            return await tool.handler(call, record)
        finally:
            notes += call.notes
            await gate.record()

    async def _find(self, name: str, who: Agent) -> Tool:
        tool = _BY_NAME.get(name)
        if tool is not None and (name not in SKILL_TOOLS or self.skills is not None):
            return tool
        there = await self._available_tools(who)
        for each in there:
            if each.name == name:
                return each
        raise NotFound(
            f"there is no tool {name[:80]!r}", op="call", remedy=f"the tools are {', '.join(t.name for t in there)}"
        )

    # --- listings --------------------------------------------------------------------------------------------

    async def schemas(self, flavour: str = "openai", *, agent: str | None = None) -> list[dict[str, Any]]:
        """Return the schemas for a request to a model, or none while no box can be created."""
        who = self.agent(agent)
        if not (await self._engine_status()).available:
            return render_schemas(flavour, (), {})
        tools = await self.visible(who)
        spec = await spec_of(who)
        return render_schemas(flavour, tools, {tool.name: self.view(who, tool, spec) for tool in tools})

    async def status(self, *, agent: str | None = None) -> ToolsStatus:
        """Return which tools the agent has. It answers even if no engine works."""
        who = self.agent(agent)
        condition = await self._engine_status(fresh=True)
        there = await self._available_tools(who) if condition.available else ()
        hidden = {tool.name: "denied by permissions" for tool in there if self._denied(who, tool)}
        if not condition.available:
            hidden = {tool.name: condition.reason or str(condition.state) for tool in TOOLS}
        elif self.skills is None:
            hidden |= dict.fromkeys(SKILL_TOOLS, "this Hutch keeps no skills")
        shown = [tool for tool in there if tool.name not in hidden]
        return ToolsStatus(
            available=condition.available,
            state=str(condition.state),
            reason=condition.reason,
            remedy=condition.remedy,
            tools=tuple(tool.name for tool in shown),
            origins={tool.name: tool.origin for tool in shown if tool.origin},
            hidden=hidden,
        )

    async def guidance(self, *, agent: str | None = None) -> str:
        """Return the text about the tools for the system prompt. It is empty while there are no tools."""
        if not (await self._engine_status()).available:
            return ""
        return await guidance(self, self.agent(agent))

    async def visible(self, who: Agent) -> tuple[Tool, ...]:
        """Return the tools that the agent has and may use."""
        return tuple(tool for tool in await self._available_tools(who) if not self._denied(who, tool))

    def permissions(self, agent: str) -> AgentPermissions:
        return rules.of(agent, self._permissions)

    def agent(self, name: str | None = None) -> Agent:
        """Return the agent of that name. The default agent uses the session of the given Hutch."""
        name = name or self.default_agent
        known = self._agents.get(name)
        if known is None:
            own = name == self.default_agent
            hutch = self.hutch if own else self.hutch.for_session(session_for_agent(self.hutch.session, name))
            known = self._agents[name] = Agent(name, hutch, self.spec, self.boxes)
        return known

    async def _available_tools(self, who: Agent) -> tuple[Tool, ...]:
        tools = TOOLS if self.skills is not None else tuple(tool for tool in TOOLS if tool.name not in SKILL_TOOLS)
        kit = self.provider_tools.get(await self.provider_of(who)) if self.provider_tools else None
        if kit is not None:
            tools += kit.with_origin(await self.provider_of(who))
        if who.skills and self.skills is not None:
            tools += await skill_tools(self.skills, who)
        return tools

    async def provider_of(self, who: Agent) -> str:
        """Return the provider of the agent's current box, or empty if there is none."""
        if who.current is not None:
            return who.current.spec.provider
        box_id = await who.hutch.current()
        if box_id is None:
            return ""
        try:
            return (await who.hutch.find(box_id)).provider
        except NotFound:
            return ""

    def _denied(self, who: Agent, tool: Tool) -> bool:
        return rules.on_tool(self.permissions(who.name), tool.name).decision is Decision.DENY

    def view(self, who: Agent, tool: Tool, spec: EffectiveSpec | None = None) -> View:
        """Hide what is denied, and bound what the box bounds. A profile can be chosen only if the application named
        some."""
        permissions = self.permissions(who.name)
        denied = {
            action.removeprefix(f"{tool.name}.")
            for action, decision in permissions.tools.items()
            if decision is Decision.DENY and action.startswith(f"{tool.name}.")
        }
        if tool.name == "exec" and spec is not None:
            longest = spec.limits.max_timeout_sec
            text = f"Seconds until it is killed: {timeout_sentence(spec)}. For longer work use the tool job."
            return View(frozenset(denied), {}, {"timeout": longest} if longest else {}, {"timeout": text})
        if tool.name != "box_lifecycle":
            return View(frozenset(denied))
        if permissions.takeover is Decision.DENY:
            denied.add(str(Lifecycle.TAKEOVER))
        more = "" if Lifecycle.TAKEOVER in denied else TAKEOVER_DESCRIPTION
        if not self.profiles:
            return View(frozenset(denied | {"profile"}), extra_description=more)
        return View(frozenset(denied), {"profile": self.profiles}, extra_description=more)

    async def _engine_status(self, *, fresh: bool = False) -> Status:
        now = time.monotonic()
        if fresh or self._cached_status is None or now - self._cached_status[0] > STATUS_CACHE_SECONDS:
            self._cached_status = (now, await self.hutch.status())
        return self._cached_status[1]

    # --- releasing leases ----------------------------------------------------------------------------------------

    def _schedule_release(self) -> None:
        if self._release_task is None and self.hold_sec > 0:
            self._release_task = asyncio.create_task(self._release_idle())

    async def _release_idle(self) -> None:
        """Release the leases of silent agents until no agent holds any."""
        try:
            while any(who.held for who in self._agents.values()):
                await asyncio.sleep(self.hold_sec / 4)
                silent_since = time.monotonic() - self.hold_sec
                for who in tuple(self._agents.values()):
                    if who.held and not who.busy and who.last_used < silent_since:
                        await who.release_all()
        finally:
            self._release_task = None

    async def forget(self, agent: str) -> None:
        """Drop an agent and release its leases now. Its boxes live on until their own timeouts."""
        who = self._agents.pop(agent, None)
        if who is not None:
            await who.release_all()

    async def close(self) -> None:
        """Release all leases. The Hutch stays open for the code that opened it."""
        if self._release_task is not None:
            self._release_task.cancel()
        for name in tuple(self._agents):
            await self.forget(name)


_BY_NAME = {tool.name: tool for tool in TOOLS}


def _skills_of(hutch: Hutch) -> Skills | None:
    """Return the skills of a Hutch, or None if it keeps none or is disabled."""
    try:
        return getattr(hutch, "skills", None)
    except Disabled:
        return None
