"""Give a box another name; no other box may have it. An empty name takes the name away."""

import argparse
import asyncio

from hutch.cli.keeper_choice import add_box, attach, visit
from hutch.cli.output import emit_json


def add(parser: argparse.ArgumentParser) -> None:
    add_box(parser)
    parser.add_argument("name", metavar="NAME", help="letters, digits and _ . - only")


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_rename(arguments))


async def _rename(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        box = await attach(hutch, arguments)
        await box.rename(arguments.name)
    if arguments.json:
        emit_json({"id": box.id, "name": arguments.name})
    return 0
