"""Keep a skill at its version, or at the one named, whatever is installed later."""

import argparse
import asyncio

from hutch.cli.keeper_choice import visit
from hutch.cli.skill.text import tell
from hutch.model.skills import SkillInfo


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("version", metavar="DIGEST", nargs="?", default="", help="the active one unless named")


def run(arguments: argparse.Namespace) -> int:
    tell(asyncio.run(_pin(arguments)), as_json=arguments.json)
    return 0


async def _pin(arguments: argparse.Namespace) -> SkillInfo:
    async with visit(arguments) as hutch:
        return await hutch.skills.pin(arguments.name, arguments.version)
