"""Show one receipt, whole, as JSON; or tell whether its command was a certain text, also where it is cut or hidden."""

import argparse
import asyncio
import sys

from hutch.cli.output import emit_json
from hutch.cli.receipts.open_ledger import add_box, box_id, reading
from hutch.errors import NotFound

EPILOG = "example: hutch receipts show dev 7 --matches 'make test'      exit code 1 if it was another command"
DIFFERS = 1


def add(parser: argparse.ArgumentParser) -> None:
    add_box(parser, needed=True)
    parser.add_argument("number", metavar="NO", type=int, help="its number in the box's chain")
    parser.add_argument("--matches", metavar="TEXT", help="whether this was it, whole; - for standard input")
    parser.add_argument("--detail", default="command", metavar="NAME", help="which detail is meant (command)")


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_show(arguments))


async def _show(arguments: argparse.Namespace) -> int:
    async with reading(arguments) as (receipts, store):
        box = await box_id(receipts, store, arguments.box)
        if arguments.matches is not None:
            text = sys.stdin.read() if arguments.matches == "-" else arguments.matches
            same = await receipts.matches(box, arguments.number, arguments.detail, text)
            emit_json({"box": box, "number": arguments.number, "detail": arguments.detail, "matches": same})
            return 0 if same else DIFFERS
        found = await receipts.list(box, arguments.number - 1, 1) if arguments.number > 0 else ()
    if not found or found[0].seq != arguments.number:
        raise NotFound(f"box {box} has no receipt {arguments.number}", remedy=f"hutch receipts list {box}")
    emit_json(found[0])
    return 0
