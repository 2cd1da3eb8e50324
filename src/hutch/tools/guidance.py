"""Text about the tools for the system prompt: paths, limits, persistence, skills, and the provider's own guidance."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hutch.errors import HutchError, NotFound
from hutch.model.arguments import spec_from_arguments
from hutch.model.spec import EffectiveSpec, Mount, MountMode, NetworkMode, Retention, Workspace
from hutch.policy import permissions as rules
from hutch.policy.permissions import Decision
from hutch.tools.agents import Agent
from hutch.tools.provider_tools import provider_prompt

if TYPE_CHECKING:
    from hutch.tools.definition import Tool
    from hutch.tools.toolbox import Tools

_INTRODUCTION = """\
You have an isolated Linux box for commands and files.{reach}
- Files: relative paths start at {workdir}. {keep}
- Long output and files come in pages: the notice at the cut says how to go on."""

_WORKSPACE_RULE = {
    MountMode.RW: "Keep what matters under /workspace; /tmp is for scratch only.",
    MountMode.RO: "/workspace is read-only: write to /tmp.",
    MountMode.NONE: "There is no /workspace: write to /tmp.",
}

_RULES = (
    ("exec", "Between calls only files and jobs persist: every exec is a new shell, so `cd` and variables are gone."),
    ("exec", "If a limit ends a command, the answer names the limit and what to try; the box and its files survive."),
    (
        "python",
        "python keeps its variables between calls, and shows tables and plots: use it to look at data.",
    ),
    ("job", "Use job for builds, servers and everything that runs longer than a moment."),
    ("edit", "Read a file before you edit it."),
    ("grep", "To find things use glob and grep."),
    ("read", "Files that came with a message are under /workspace/inbox."),
    ("send_file", "send_file sends a file to the user; writing a file does not."),
)
"""Rules that are given only to agents that have the tool."""


async def guidance(tools: "Tools", agent: Agent) -> str:
    spec = await spec_of(agent)
    shown = await tools.visible(agent)
    permissions = tools.permissions(agent.name)
    has = [rule for name, rule in _RULES if rules.on_tool(permissions, name).decision is not Decision.DENY]
    parts = ["\n- ".join((_introduction(agent, spec), *has))]
    if spec is not None:
        parts.append(_limits(spec, has_jobs=any(tool.name == "job" for tool in shown)))
    parts.append(_tools(tools, agent, shown))
    if asked := _approval_rules(tools, agent):
        parts.append(asked)
    if skills := await _skills(tools, agent):
        parts.append(skills)
    if provider := await _provider(tools, agent):
        parts.append(provider)
    return "\n\n".join(parts)


async def spec_of(agent: Agent) -> EffectiveSpec | None:
    """Return the effective spec of the current box, or of the one that the next call would create.

    It creates no box. None means that no box could be created now.
    """
    if agent.current is not None:
        return agent.current.spec
    try:
        box_id = await agent.hutch.current()
        if box_id:
            return (await agent.hutch.find(box_id)).spec
    except NotFound:
        pass  # The box is gone, and the next call creates another.
    try:
        return await agent.hutch.plan(**agent.spec)
    except HutchError:
        return None  # The call that needs the box reports why.


def _introduction(agent: Agent, spec: EffectiveSpec | None) -> str:
    """Say which directories of the machine the box shows: an agent must know which of its changes reach the user.

    If no box could be created now, only the requested mounts are known. Its profile may add more, so nothing is
    promised.
    """
    if spec is None:
        asked = spec_from_arguments(**agent.spec)
        workspace, mounts, workdir = asked.workspace or Workspace(), asked.mounts, asked.workdir or "/workspace"
        promise: tuple[str, ...] = ()
    else:
        workspace, mounts, workdir = spec.workspace, spec.mounts, spec.workdir
        promise = ("Nothing you do in it reaches the machine it runs on.",)
    shown = mount_sentences(workspace, mounts)
    if shown and promise:
        promise = ("Nothing else you do in it reaches the machine it runs on.",)
    reach = "".join(f" {sentence}" for sentence in (*shown, *promise))
    return _INTRODUCTION.format(workdir=workdir, reach=reach, keep=_WORKSPACE_RULE[workspace.mode])


def mount_sentences(workspace: Workspace, mounts: Sequence[Mount]) -> tuple[str, ...]:
    """Return a sentence for each directory of the machine and each volume that the box shows."""
    places = (Mount(source=workspace.source, target="/workspace", mode=workspace.mode), *mounts)
    return tuple(_mount_sentence(each) for each in places if each.source != "own" and each.mode is not MountMode.NONE)


def _mount_sentence(place: Mount) -> str:
    kind, _, name = place.source.partition(":")
    writable = place.mode is MountMode.RW
    if kind == "volume":
        may = "it stays when this box ends, and other boxes may use it" if writable else "read-only"
        return f"{place.target} is the volume {name}: {may}."
    if writable:
        ownership_note = f"{place.target} is {place.source} of the machine itself"
        return f"{ownership_note}: what you change or remove there is changed for its user."
    return f"{place.target} shows {place.source} of the machine itself, read-only."


def _tools(tools: "Tools", agent: Agent, shown: "Sequence[Tool]") -> str:
    """Name the tools that this agent has, and what the actions of the grouped ones do."""
    lines = [f"Tools: {', '.join(tool.name for tool in shown)}. Those with actions:"]
    for tool in shown:
        if tool.actions:
            hidden = tools.view(agent, tool).hidden
            texts = "; ".join(f"{name}: {text}" for name, text in tool.actions.items() if name not in hidden)
            lines.append(f"- {tool.name}: {texts}.")
    return "\n".join(lines)


def timeout_sentence(spec: EffectiveSpec) -> str:
    """Say how long a command may run in the box, in words for a model."""
    limits = spec.limits
    longest = f", at most {limits.max_timeout_sec:g} s" if limits.max_timeout_sec else ""
    return f"{limits.timeout_sec:g} s unless you give a timeout{longest}"


def _limits(spec: EffectiveSpec, *, has_jobs: bool) -> str:
    limits = spec.limits
    longer = ' For longer work start a job: job(action="start"), which runs until it ends.' if has_jobs else ""
    lines = [
        f"This box: {limits.cpus:g} CPU, {limits.memory_mb} MB memory, {limits.disk_mb} MB disk, "
        f"{limits.pids} processes.",
        f"A command may run {timeout_sentence(spec)}.{longer}",
        {
            NetworkMode.OFF: "It has no network: nothing can be downloaded or installed from the internet.",
            NetworkMode.ON: "It has internet access; private networks and the host are not reachable.",
            NetworkMode.ALLOWLIST: "It reaches only the internet addresses that the operator has allowed.",
        }[spec.network],
    ]
    if spec.read_only_root:
        places = ["/workspace"] if spec.workspace.mode is MountMode.RW else []
        places += ["/tmp", *(each.target for each in spec.mounts if each.mode is MountMode.RW)]
        lines.append(f"You can write in {', '.join(places)}; everything else is read-only.")
    else:
        lines.append("The system is writable: what you install stays until the box ends.")
    if spec.retention is Retention.TEMPORARY:
        lines.append("The box is temporary: when it has not been used for long, it ends and its files are gone.")
    return " ".join(lines)


def _approval_rules(tools: "Tools", agent: Agent) -> str:
    permissions = tools.permissions(agent.name)
    asked = sorted(name for name, decision in permissions.tools.items() if decision is Decision.ASK)
    lines = [f"Before these are used the user is asked: {', '.join(asked)}."] if asked else []
    if permissions.commands or permissions.paths:
        lines.append(
            "Some commands or paths are not permitted; the answer says so, and trying them again does not help."
        )
    if rules.on_tool(permissions, "").decision is Decision.ASK:
        lines.append("The user is asked before a tool is used.")
    return " ".join(lines)


async def _skills(tools: "Tools", agent: Agent) -> str:
    """List names and descriptions only. A model gets the body when it activates the skill."""
    if tools.skills is None:
        return ""
    found = await tools.skills.all()
    if not found:
        return ""
    lines = [f"- {each.name}: {each.description}" for each in found]
    return "Skills (use activate_skill before a task that one of them is for):\n" + "\n".join(lines)


async def _provider(tools: "Tools", agent: Agent) -> str:
    """Return the guidance of the provider whose box is current."""
    name = await tools.provider_of(agent)
    if not name:
        return ""
    kit = tools.provider_tools.get(name)
    known = () if kit is not None and kit.prompt else await agent.hutch.providers(name)
    return provider_prompt(name, kit, known)
