"""One call of a skill's own tool, as words to run in a box: its program, what it is told, and what it may not do."""

import json
from collections.abc import Mapping

from hutch.errors import NotFound, Refused
from hutch.model.skills import SkillInfo, SkillPlace, SkillTool
from hutch.model.spec import EffectiveSpec, NetworkMode
from hutch.skills import confinement

_WITH_PATH = 'PATH="${SKILL_BIN:+$SKILL_BIN:}$PATH"; export PATH; exec "$@"'


def tool_of(skill: SkillInfo, name: str) -> SkillTool:
    found = next((tool for tool in skill.tools if tool.name == name), None)
    if found is None:
        raise NotFound(f"skill {skill.name} brings no tool {name}")
    return found


def words(skill: SkillInfo, tool: SkillTool, place: SkillPlace, box: EffectiveSpec) -> tuple[str, ...]:
    """The command to run with `place.env` and the arguments as JSON on its standard input."""
    if skill.permissions.network and box.network is NetworkMode.OFF:
        raise Refused(
            f"skill {skill.name} needs the network, and this box has none",
            remedy="use a box with network, or do without its tools",
            details={"permission": "network"},
        )
    command: tuple[str, ...] = _located(tool.command, place.path)
    if "SKILL_BIN" in place.env:
        command = ("sh", "-c", _WITH_PATH, "sh", *command)
    # Outermost: a `python3` among the skill's own dependencies must not be the one that confines it.
    given_up = confinement.rules(
        skill.name, place.state, skill.permissions, box_has_network=box.network is not NetworkMode.OFF
    )
    if given_up is not None:
        command = ("python3", "-I", "-S", "-c", confinement.PROGRAM, json.dumps(given_up), *command)
    return command


def given(arguments: Mapping[str, object]) -> str:
    """A tool's arguments as its program reads them."""
    return json.dumps(arguments)


def _located(command: tuple[str, ...], path: str) -> tuple[str, ...]:
    """A relative program with a slash in its name is a file of the skill."""
    program = command[0]
    if "/" in program and not program.startswith("/"):
        return (f"{path}/{program}", *command[1:])
    return command
