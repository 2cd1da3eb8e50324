"""Show the volumes there are, and how many boxes use each."""

import argparse
import asyncio
import time

from hutch.cli.keeper_choice import visit
from hutch.cli.output import emit_json, table
from hutch.cli.volume.use import users
from hutch.model.durations import shown


def add(parser: argparse.ArgumentParser) -> None:
    """It has no options of its own."""


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_list(arguments))


async def _list(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        volumes = await hutch.volumes.all()
        used = users(await hutch.boxes())
    if arguments.json:
        emit_json({"volumes": [{**volume.to_plain(), "boxes": used.get(volume.name, [])} for volume in volumes]})
    elif not volumes:
        print("there is no volume; `hutch volume create NAME` makes one")
    else:
        rows = [
            (volume.name, str(len(used.get(volume.name, []))), shown(time.time() - volume.created_at))
            for volume in volumes
        ]
        table(("VOLUME", "BOXES", "AGE"), rows)
    return 0
