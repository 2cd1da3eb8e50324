"""Remove a volume with its files; refused while a box uses it."""

import argparse
import asyncio

from hutch.cli.keeper_choice import visit
from hutch.cli.output import emit_json


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_remove(arguments))


async def _remove(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        await hutch.volumes.remove(arguments.name)
    if arguments.json:
        emit_json({"removed": arguments.name})
    return 0
