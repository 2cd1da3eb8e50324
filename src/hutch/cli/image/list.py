"""Show the images there are, their sizes, and how many boxes stand on each."""

import argparse

from hutch.cli.image import telling
from hutch.cli.image.opening import store_of
from hutch.cli.output import emit_json, note, table
from hutch.errors import HutchError


def add(parser: argparse.ArgumentParser) -> None:
    """It has no options of its own."""


def run(arguments: argparse.Namespace) -> int:
    store = store_of(arguments)
    images = []
    for stored in store.named():
        try:
            images.append(telling.brief(store, stored, telling.boxes_of(store, stored.manifest)))
        except HutchError as error:
            note(f"{stored.name} cannot be used: {error}")
    if arguments.json:
        emit_json({"images": images})
    elif not images:
        print("there is no image; `hutch image pull NAME` fetches one")
    else:
        table(telling.HEADER, [telling.row(image) for image in images])
    return 0
