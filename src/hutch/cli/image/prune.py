"""Remove what no image and no box needs: layers without a name, results of build steps, cut downloads."""

import argparse

from hutch.cli.image.open_store import store_of
from hutch.cli.output import emit_json
from hutch.cli.tables import amount
from hutch.images import prune


def add(parser: argparse.ArgumentParser) -> None:
    """It has no options of its own."""


def run(arguments: argparse.Namespace) -> int:
    gone = prune.prune(store_of(arguments))
    if arguments.json:
        emit_json({"blobs": gone.blobs, "layers": gone.layers, "freed_bytes": gone.bytes})
    else:
        print(f"{gone.layers} layers and {gone.blobs} blobs removed, {amount(gone.bytes)} freed")
    return 0
