"""Show one receipt, whole, as JSON."""

import argparse
import asyncio

from hutch.cli.output import emit_json
from hutch.cli.receipts.reading import add_box, box_id, reading
from hutch.errors import NotFound


def add(parser: argparse.ArgumentParser) -> None:
    add_box(parser, needed=True)
    parser.add_argument("number", metavar="NO", type=int, help="its number in the box's chain")


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_show(arguments))


async def _show(arguments: argparse.Namespace) -> int:
    async with reading(arguments) as (receipts, store):
        box = await box_id(receipts, store, arguments.box)
        found = await receipts.list(box, arguments.number - 1, 1) if arguments.number > 0 else ()
    if not found or found[0].seq != arguments.number:
        raise NotFound(f"box {box} has no receipt {arguments.number}", remedy=f"hutch receipts list {box}")
    emit_json(found[0])
    return 0
