"""Write a skill as a zip file; the same version gives the same bytes."""

import argparse
import asyncio
import sys
from pathlib import Path

from hutch.cli.keeper_choice import visit
from hutch.cli.output import emit_json, note
from hutch.cli.tables import amount
from hutch.errors import FileThere, Invalid


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("target", metavar="FILE", nargs="?", help="default: NAME.zip here; - is standard output")
    parser.add_argument("--version", default="", metavar="DIGEST", help="this one, not the active one")


def run(arguments: argparse.Namespace) -> int:
    target = arguments.target or f"{arguments.name}.zip"
    if target == "-" and arguments.json:
        raise Invalid("--json and standard output exclude each other", op="skill export", remedy="leave one out")
    data = asyncio.run(_export(arguments))
    if target == "-":
        sys.stdout.buffer.write(data)
        return 0
    try:
        with open(target, "xb") as file:
            file.write(data)
    except FileExistsError as error:
        raise FileThere(f"{target} exists", remedy="name another file, or remove it") from error
    if arguments.json:
        emit_json({"file": str(Path(target).absolute()), "bytes": len(data)})
    else:
        note(f"wrote {target}, {amount(len(data))}")
    return 0


async def _export(arguments: argparse.Namespace) -> bytes:
    async with visit(arguments) as hutch:
        return await hutch.skills.export(arguments.name, arguments.version)
