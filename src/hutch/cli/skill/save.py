"""Make what was edited in a box a new version of a skill.

Skills are read-only in boxes: the edited copy lies in the skill's state directory under `edit`, or where --path says.
"""

import argparse
import asyncio

from hutch.cli.keeper_choice import add_session, visit
from hutch.cli.skill.text import tell
from hutch.model.skills import SkillInfo


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--box", required=True, metavar="BOX", help="its name or id")
    parser.add_argument("--path", default="", help="the edited copy in the box")
    add_session(parser)


def run(arguments: argparse.Namespace) -> int:
    tell(asyncio.run(_save(arguments)), as_json=arguments.json)
    return 0


async def _save(arguments: argparse.Namespace) -> SkillInfo:
    async with visit(arguments) as hutch:
        box = await hutch.attach((await hutch.find(arguments.box)).id)
        return await hutch.skills.save(arguments.name, box, arguments.path)
