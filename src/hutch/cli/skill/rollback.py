"""Make the version before, or the one named, the active one."""

import argparse
import asyncio

from hutch.cli.keeper_choice import visit
from hutch.cli.skill.text import tell
from hutch.model.skills import SkillInfo


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("version", metavar="DIGEST", nargs="?", default="", help="the one before unless named")


def run(arguments: argparse.Namespace) -> int:
    tell(asyncio.run(_rollback(arguments)), as_json=arguments.json)
    return 0


async def _rollback(arguments: argparse.Namespace) -> SkillInfo:
    async with visit(arguments) as hutch:
        return await hutch.skills.rollback(arguments.name, arguments.version)
