"""Remove images, with the layers that no other image needs; refused while a box stands on one."""

import argparse

from hutch.cli.image.open_store import store_of
from hutch.cli.output import emit_json
from hutch.cli.tables import amount
from hutch.images import prune


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "images", metavar="NAME", nargs="+", help="its name, or sha256: and the beginning of its digest"
    )
    parser.add_argument(
        "--force", action="store_true", help="take the name away now; layers go when the last box that needs them does"
    )


def run(arguments: argparse.Namespace) -> int:
    store = store_of(arguments)
    freed, names = 0, []
    for text in arguments.images:
        stored, collected = prune.remove(store, text, force=arguments.force)
        freed += collected.bytes
        names.append(stored.name)
        if not arguments.json:
            print(stored.name)
    if arguments.json:
        emit_json({"removed": names, "freed_bytes": freed})
    elif freed:
        print(f"{amount(freed)} freed")
    return 0
