"""The tools `list_skills` and `activate_skill`, and the tools that active skills add."""

import json
import re
from typing import Annotated, Any

from msgspec import Meta

from hutch.api import Box, Skills
from hutch.errors import NotFound
from hutch.model.skills import SkillInfo, SkillTool
from hutch.policy.permissions import Decision, on_tool
from hutch.skills import tool_call
from hutch.tools.agents import Agent
from hutch.tools.builtin.answers import ActivateSkillAnswer, CommandAnswer, ListSkillsAnswer
from hutch.tools.builtin.output import render
from hutch.tools.call import Call
from hutch.tools.definition import Arguments, Tool, tool
from hutch.tools.result import ToolResult, answer

MAX_NAME = 64
"""Longest tool name that model interfaces accept."""


class ListSkillsArguments(Arguments, frozen=True, kw_only=True):
    pass


class ActivateSkillArguments(Arguments, frozen=True, kw_only=True):
    name: Annotated[str, Meta(description="The skill's name, from list_skills.", min_length=1, max_length=100)]


def _skills(call: Call) -> Skills:
    if call.tools.skills is None:
        raise NotFound("this Hutch keeps no skills", op="skills")
    return call.tools.skills


@tool("list_skills", ListSkillsArguments, answers=ListSkillsAnswer, example={}, read_only=True)
async def list_skills_tool(call: Call, given: ListSkillsArguments) -> ToolResult:
    """List the skills there are: packages of instructions, scripts and files for a kind of task."""
    found = await _skills(call).all()
    lines = [f"{each.name}: {each.description}" + _active(call.agent, each) for each in found] or [
        "there are no skills"
    ]
    rows = [
        {
            "name": each.name, "description": each.description, "active": each.name in call.agent.skills,
            "tools": [tool_name(each, its) for its in each.tools],
        }
        for each in found
    ]  # fmt: skip
    return answer("\n".join(lines), {"skills": rows})


def _active(agent: Agent, info: SkillInfo) -> str:
    return " [active]" if info.name in agent.skills else ""


@tool("activate_skill", ActivateSkillArguments, answers=ActivateSkillAnswer, example={"name": "pdf"})
async def activate_skill_tool(call: Call, given: ActivateSkillArguments) -> ToolResult:
    """Activate a skill: returns its instructions. Its files are in the box at /workspace/.skills/NAME, and the tools it
    brings join yours."""
    skills = _skills(call)
    info = await skills.get(given.name)
    body = await skills.body(info.name)
    preparing = call.on_box(lambda box: skills.prepare(info.name, box))
    place = await call.with_progress(preparing, f"preparing skill {info.name}")
    call.agent.skills[info.name] = info.digest
    names = [tool_name(info, its) for its in info.tools]
    text = (
        f"Skill {info.name} is active. Its files are at {place.path} (read-only); it may write to {place.state}.\n\n"
        f"{body.strip()}"
    )
    if names:
        text += f"\n\nTools that it brings: {', '.join(names)}"
    facts = {
        "name": info.name, "digest": info.digest, "path": place.path, "state": place.state, "tools": names,
        "env": place.env, "body": body,
    }  # fmt: skip
    return answer(text, facts, *([info.warning] if info.warning else []), *place.warnings, *_withheld(call, info))


def _withheld(call: Call, info: SkillInfo) -> list[str]:
    """Warn about tools that the skill needs and this agent may not use, before the work begins."""
    permissions = call.tools.permissions(call.agent.name)
    relied = info.permissions.tools or ()
    missing = [name for name in relied if on_tool(permissions, name).decision is Decision.DENY]
    return [f"skill {info.name} relies on {', '.join(missing)}, which you may not use"] if missing else []


def tool_name(info: SkillInfo, its: SkillTool) -> str:
    """Return `SKILL__TOOL` in characters that every model interface accepts."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", f"{info.name}__{its.name}")[:MAX_NAME]


async def skill_tools(skills: Skills, agent: Agent) -> tuple[Tool, ...]:
    """Return the tools of the agent's active skills, and deactivate skills that were removed meanwhile."""
    found: list[Tool] = []
    for name in tuple(agent.skills):
        try:
            info = await skills.get(name)
        except NotFound:
            del agent.skills[name]
            continue
        found += [_tool(skills, info, its) for its in info.tools]
    return tuple(found)


def _tool(skills: Skills, info: SkillInfo, its: SkillTool) -> Tool:
    async def run(call: Call, given: dict[str, Any]) -> ToolResult:
        await call.gate.check_command(its.command)
        kept = call.tools.output_bytes

        async def work(box: Box) -> ToolResult:
            place = await skills.prepare(info.name, box)
            command = tool_call.command_line(info, its, place, box.spec)
            running = box.exec(command, env=place.env, stdin=json.dumps(given), keep_output=kept)
            result = await call.with_progress(running, f"running {its.name}")
            text, structured = render(result, kept)
            return answer(text, {"box": box.id, **structured}, *result.notes, *place.warnings)

        return await call.on_box(work)

    return Tool(
        name=tool_name(info, its),
        description=its.description or f"{its.name} of the skill {info.name}",
        arguments=None,
        handler=run,
        parameters=its.parameters,
        origin=f"skill:{info.name}",
        answers=CommandAnswer,
        settles=True,
    )
