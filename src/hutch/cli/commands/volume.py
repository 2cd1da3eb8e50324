"""Volumes: named directories that outlive boxes, to be the workspace of one or several of them.

A box works in one with `hutch box create --workspace volume:NAME`, or has it at another place with
`--mount volume:NAME:/data:rw`.
"""

import argparse
import asyncio
import time
from collections.abc import Iterable

from hutch.cli.commands.box.files import size_of
from hutch.cli.connect import open_hutch
from hutch.cli.output import byte_size, emit_json, table
from hutch.cli.parsers import CliCommand
from hutch.keeper.volumes import volumes_of
from hutch.model.boxes import BoxInfo
from hutch.model.units import format_seconds


class Create(CliCommand):
    """Make a volume: a directory that boxes share, or that outlives one."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", help="letters, digits and _ . - only")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            volume = await hutch.volumes.create(arguments.name)
        if arguments.json:
            emit_json(volume.to_plain())
        else:
            print(volume.name)
        return 0


class List(CliCommand):
    """Show the volumes there are, and how many boxes use each."""

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            volumes = await hutch.volumes.all()
            used = _users(await hutch.boxes())
        if arguments.json:
            emit_json({"volumes": [{**volume.to_plain(), "boxes": used.get(volume.name, [])} for volume in volumes]})
        elif not volumes:
            print("there is no volume; `hutch volume create NAME` makes one")
        else:
            rows = [
                (volume.name, str(len(used.get(volume.name, []))), format_seconds(time.time() - volume.created_at))
                for volume in volumes
            ]
            table(("VOLUME", "BOXES", "AGE"), rows)
        return 0


class Show(CliCommand):
    """Show one volume: where it is, how large, and which boxes use it."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            volume = await hutch.volumes.get(arguments.name)
            boxes = _users(await hutch.boxes()).get(volume.name, [])
        # A server reveals the path of a volume only to a client on its own machine.
        size = await asyncio.to_thread(size_of, volume.path) if volume.path else None
        if arguments.json:
            emit_json({**volume.to_plain(), "bytes": size, "boxes": boxes})
            return 0
        print(f"name:  {volume.name}")
        if size is not None:
            print(f"path:  {volume.path}\nsize:  {byte_size(size)}")
        print(f"boxes: {' '.join(boxes) or 'none'}")
        return 0


class Remove(CliCommand):
    """Remove a volume with its files; refused while a box uses it."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            await hutch.volumes.remove(arguments.name)
        if arguments.json:
            emit_json({"removed": arguments.name})
        return 0


def _users(boxes: Iterable[BoxInfo]) -> dict[str, list[str]]:
    """Map each volume to the ids of the boxes that use it."""
    used: dict[str, list[str]] = {}
    for box in boxes:
        for name in volumes_of(box.spec):
            used.setdefault(name, []).append(box.id)
    return used
