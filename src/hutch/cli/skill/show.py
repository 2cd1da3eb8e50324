"""Show one skill: what it declares, its files, or the text of one of them."""

import argparse
import asyncio
import sys

from hutch.cli.keeper_choice import visit
from hutch.cli.output import emit_json, printable
from hutch.cli.skill.text import permissions
from hutch.cli.tables import amount
from hutch.model.skills import SkillFile, SkillInfo


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--file", metavar="PATH", help="write this file of it to standard output, as it is")
    parser.add_argument("--version", default="", metavar="DIGEST", help="of this version, not the active one")


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_show(arguments))


async def _show(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        if arguments.file:
            data = await hutch.skills.read_file(arguments.name, arguments.file, arguments.version)
            sys.stdout.buffer.write(data)
            return 0
        skill = await hutch.skills.get(arguments.name)
        files = await hutch.skills.files(arguments.name, arguments.version)
    if arguments.json:
        emit_json({**skill.to_plain(), "content": [file.to_plain() for file in files]})
    else:
        _tell(skill, files)
    return 0


def _tell(skill: SkillInfo, files: tuple[SkillFile, ...]) -> None:
    facts = {
        "name": skill.name,
        "description": printable(skill.description),
        "version": skill.digest + (" (pinned)" if skill.pinned else ""),
        "from": printable(skill.origin),
        "license": printable(skill.license),
        "compatibility": printable(skill.compatibility),
        "tools": printable(", ".join(tool.name for tool in skill.tools)),
        "needs": printable(", ".join((*skill.dependencies.python, *skill.dependencies.node))),
        "declares": "; ".join(permissions(skill.permissions)),
        "warning": printable(skill.warning),
    }
    for name, value in facts.items():
        if value:
            print(f"{name + ':':<15}{value}")
    print("files:")
    for file in files:
        print(f"  {'x' if file.executable else ' '} {amount(file.size):>10}  {printable(file.path)}")
