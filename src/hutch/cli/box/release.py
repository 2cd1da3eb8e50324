"""Give up the lease of a box, so that another session may have it at once. The box goes on."""

import argparse
import asyncio

from hutch.cli.keeper_choice import add_box, attach, visit
from hutch.cli.output import emit_json


def add(parser: argparse.ArgumentParser) -> None:
    add_box(parser)


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_release(arguments))


async def _release(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        box = await attach(hutch, arguments)
        await box.release()
    if arguments.json:
        emit_json({"id": box.id, "lease": None})
    return 0
