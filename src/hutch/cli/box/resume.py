"""Let a paused box run again, or bring back a stopped one with its files. Any use of a box does the same."""

import argparse
import asyncio

from hutch.cli.keeper_choice import add_box, attach, visit
from hutch.cli.output import emit_json


def add(parser: argparse.ArgumentParser) -> None:
    add_box(parser)


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_resume(arguments))


async def _resume(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        box = await attach(hutch, arguments)
        await box.resume()
        if arguments.json:
            emit_json({"id": box.id, "state": str(await box.state())})
    return 0
