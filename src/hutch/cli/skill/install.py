"""Install a skill from a directory, a zip file or a git repository; the same content twice is one version."""

import argparse
import asyncio

from hutch.cli.keeper_choice import visit
from hutch.cli.skill.source import EPILOG, add_source, named
from hutch.cli.skill.text import tell
from hutch.cli.tables import progress

__all__ = ["EPILOG", "add", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("--digest", default="", help="only if it is this version, as a preview has shown it")


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_install(arguments))


async def _install(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        async with progress(f"installing {arguments.source}"):
            skill = await hutch.skills.install(arguments.source, digest=arguments.digest, **named(arguments))
    tell(skill, as_json=arguments.json)
    return 0
