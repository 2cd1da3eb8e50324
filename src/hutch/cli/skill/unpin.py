"""Let a pinned skill change again."""

import argparse
import asyncio

from hutch.cli.keeper_choice import visit
from hutch.cli.skill.text import tell
from hutch.model.skills import SkillInfo


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")


def run(arguments: argparse.Namespace) -> int:
    tell(asyncio.run(_unpin(arguments)), as_json=arguments.json)
    return 0


async def _unpin(arguments: argparse.Namespace) -> SkillInfo:
    async with visit(arguments) as hutch:
        return await hutch.skills.unpin(arguments.name)
