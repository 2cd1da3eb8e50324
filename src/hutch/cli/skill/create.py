"""Make a new skill of one file; the instructions may come from standard input."""

import argparse
import asyncio
import os
import sys

from hutch.cli.keeper_choice import visit
from hutch.cli.skill.text import tell


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="lowercase letters, digits and hyphens")
    parser.add_argument("--description", required=True, help="what it is for, and when to use it")
    parser.add_argument("--stdin", action="store_true", help="read the instructions from standard input")


def run(arguments: argparse.Namespace) -> int:
    body = sys.stdin.read() if arguments.stdin and not os.isatty(0) else ""
    return asyncio.run(_create(arguments, body))


async def _create(arguments: argparse.Namespace, body: str) -> int:
    async with visit(arguments) as hutch:
        skill = await hutch.skills.create(arguments.name, arguments.description, body)
    tell(skill, as_json=arguments.json)
    return 0
