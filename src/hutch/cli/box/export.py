"""Write a box to a file: workspace, home, changes of its system, spec and labels. The box goes on."""

import argparse
import asyncio

from hutch.cli.keeper_choice import add_box, attach, visit
from hutch.cli.local_files import own_file
from hutch.cli.output import emit_json, note
from hutch.cli.tables import amount

EPILOG = """\
examples:
  hutch box export dev dev.hutch
  hutch box import dev.hutch --provider docker     the same box on another engine
"""


def add(parser: argparse.ArgumentParser) -> None:
    add_box(parser)
    parser.add_argument("file", metavar="FILE", help="where to; it is replaced as a whole")


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_export(arguments))


async def _export(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        box = await attach(hutch, arguments)
        with own_file("export"):
            moved = await box.export(arguments.file)
    if arguments.json:
        emit_json({"id": moved.box_id, "file": arguments.file, **moved.to_plain()})
        return 0
    for each in moved.notes:
        note(each)
    print(f"{arguments.file}: {', '.join(moved.parts) or 'the spec alone'}, {amount(moved.size)}")
    return 0
