"""Show the images there are, their sizes, and how many boxes stand on each."""

import argparse

from hutch.cli.image import text
from hutch.cli.image.open_store import store_of
from hutch.cli.output import emit_json, note, table
from hutch.errors import HutchError


def add(parser: argparse.ArgumentParser) -> None:
    """It has no options of its own."""


def run(arguments: argparse.Namespace) -> int:
    store = store_of(arguments)
    images = []
    for stored in store.named():
        try:
            images.append(text.brief(store, stored, text.boxes_of(store, stored.manifest)))
        except HutchError as error:
            note(f"{stored.name} cannot be used: {error}")
    if arguments.json:
        emit_json({"images": images})
    elif not images:
        print("there is no image; `hutch image pull NAME` fetches one")
    else:
        table(text.HEADER, [text.row(image) for image in images])
    return 0
