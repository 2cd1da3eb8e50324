"""Print receipts as lines of JSON that can be verified anywhere: of one box, or of all."""

import argparse
import asyncio
import sys

from hutch.cli.receipts.open_ledger import add_box, box_id, reading

EPILOG = "example: hutch receipts export > receipts.jsonl; hutch receipts verify --file receipts.jsonl"


def add(parser: argparse.ArgumentParser) -> None:
    add_box(parser)


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_export(arguments))


async def _export(arguments: argparse.Namespace) -> int:
    async with reading(arguments) as (receipts, store):
        box = await box_id(receipts, store, arguments.box) if arguments.box else ""
        async for piece in receipts.export(box):
            sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
    return 0
