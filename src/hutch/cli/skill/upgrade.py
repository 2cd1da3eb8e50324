"""Get the newest of a skill from where it came."""

import argparse
import asyncio

from hutch.cli.keeper_choice import visit
from hutch.cli.skill.text import tell
from hutch.model.skills import SkillInfo


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")


def run(arguments: argparse.Namespace) -> int:
    tell(asyncio.run(_upgrade(arguments)), as_json=arguments.json)
    return 0


async def _upgrade(arguments: argparse.Namespace) -> SkillInfo:
    async with visit(arguments) as hutch:
        return await hutch.skills.upgrade(arguments.name)
