"""Make a box from an exported one, on the same or another provider, and print its id."""

import argparse
import asyncio

from hutch.cli.keeper_choice import add_session, is_visit, visit
from hutch.cli.local_files import own_file
from hutch.cli.options import duration
from hutch.cli.output import emit_json, note

EPILOG = """\
examples:
  hutch box import dev.hutch
  hutch box import dev.hutch --provider docker --image oci:debian:12 --name dev2
"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="what `hutch box export` wrote")
    parser.add_argument("--provider", help="the engine (default: that of the exported box)")
    parser.add_argument("--profile", help="another profile")
    parser.add_argument("--image", metavar="REF", help="another image")
    parser.add_argument("--name", help="another name; an empty one for none")
    parser.add_argument("--keep", type=duration, metavar="TIME", help="how long it lives without use: 90s, 2h (15m)")
    add_session(parser)


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_import(arguments))


async def _import(arguments: argparse.Namespace) -> int:
    async with visit(arguments, grace=arguments.keep) as hutch:
        changes = {"profile": arguments.profile, "image": arguments.image, "name": arguments.name}
        with own_file("import"):
            box = await hutch.import_box(arguments.file, provider=arguments.provider or "", **changes)
        if arguments.keep is not None and not is_visit(hutch):
            await box.change(idle_timeout_sec=arguments.keep)  # a visit leaves it to the box's own clock
    if arguments.json:
        emit_json({"id": box.id, "notes": box.notes})
        return 0
    for each in box.notes:
        note(each)
    print(box.id)
    return 0
