"""Make a volume: a directory that boxes share, or that outlives one."""

import argparse
import asyncio

from hutch.cli.keeper_choice import visit
from hutch.cli.output import emit_json


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="letters, digits and _ . - only")


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_create(arguments))


async def _create(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        volume = await hutch.volumes.create(arguments.name)
    if arguments.json:
        emit_json(volume.to_plain())
    else:
        print(volume.name)
    return 0
