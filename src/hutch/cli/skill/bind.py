"""Show the groups of skills, or say which skills one holds. Boxes made with --skills GROUP show exactly those."""

import argparse
import asyncio

from hutch.cli.keeper_choice import visit
from hutch.cli.output import emit_json, note, table


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", metavar="GROUP", nargs="?", help="show all groups unless named")
    parser.add_argument("names", metavar="NAME", nargs="*", help="exactly these skills, in running boxes too")
    parser.add_argument("--end", action="store_true", help="end the group instead")


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_bind(arguments))


async def _bind(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        if arguments.group and (arguments.names or arguments.end):
            await hutch.skills.bind(arguments.group, () if arguments.end else arguments.names)
        bindings = await hutch.skills.bindings()
        there = {skill.name for skill in await hutch.skills.all()}
    for name in sorted({*arguments.names} - there):
        note(f"there is no skill {name} yet; the group's boxes show it when it is installed")
    chosen = [each for each in bindings if arguments.group in (None, each.group)]
    if arguments.json:
        emit_json({"bindings": [each.to_plain() for each in chosen]})
    else:
        table(("GROUP", "SKILLS"), [(each.group, " ".join(each.skills)) for each in chosen])
    return 0
