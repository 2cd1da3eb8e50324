"""Show one volume: where it is, how large, and which boxes use it."""

import argparse
import asyncio

from hutch.cli.box.cp import size_of
from hutch.cli.keeper_choice import visit
from hutch.cli.output import emit_json
from hutch.cli.tables import amount
from hutch.cli.volume.use import users


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_show(arguments))


async def _show(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        volume = await hutch.volumes.get(arguments.name)
        boxes = users(await hutch.boxes()).get(volume.name, [])
    # A server tells where a volume lies only to whoever is on its machine.
    size = await asyncio.to_thread(size_of, volume.path) if volume.path else None
    if arguments.json:
        emit_json({**volume.to_plain(), "bytes": size, "boxes": boxes})
        return 0
    print(f"name:  {volume.name}")
    if size is not None:
        print(f"path:  {volume.path}\nsize:  {amount(size)}")
    print(f"boxes: {' '.join(boxes) or 'none'}")
    return 0
