"""Write one file of a skill from standard input, or remove it: a new version, in which all else is as it was."""

import argparse
import asyncio
import sys

from hutch.cli.keeper_choice import visit
from hutch.cli.skill.text import tell
from hutch.model.skills import SkillInfo


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("file", metavar="PATH", help="below the skill's directory")
    parser.add_argument("--executable", action="store_true", help="it is a program")
    parser.add_argument("--remove", action="store_true", help="remove the file instead")


def run(arguments: argparse.Namespace) -> int:
    data = b"" if arguments.remove else sys.stdin.buffer.read()
    tell(asyncio.run(_write(arguments, data)), as_json=arguments.json)
    return 0


async def _write(arguments: argparse.Namespace, data: bytes) -> SkillInfo:
    async with visit(arguments) as hutch:
        if arguments.remove:
            return await hutch.skills.remove_file(arguments.name, arguments.file)
        return await hutch.skills.write_file(
            arguments.name, arguments.file, data, executable=arguments.executable
        )  # fmt: skip
