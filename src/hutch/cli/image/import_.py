"""Import images from an OCI layout (directory or tar), a `docker save` archive or the tar of a plain root."""

import argparse
import os
import sys

from hutch.cli.image import text
from hutch.cli.image.open_store import store_of
from hutch.cli.output import emit_json
from hutch.images import manifests
from hutch.images.archives import import_path, import_stream


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="the directory or archive, packed or not; `-`: standard input")
    parser.add_argument("name", metavar="NAME", nargs="?", default="", help="how to call it, if it does not say")
    parser.add_argument("--platform", metavar="OS/ARCH", help="of several, take this one (default: this machine's)")


def run(arguments: argparse.Namespace) -> int:
    store = store_of(arguments)
    platform = manifests.platform_of(arguments.platform) if arguments.platform else None
    if arguments.path == "-":
        images = import_stream(store, sys.stdin.buffer, arguments.name, platform)
    else:
        images = import_path(store, os.path.abspath(arguments.path), arguments.name, platform)
    if arguments.json:
        emit_json({"images": [text.full(store, image) for image in images]})
    else:
        for image in images:
            print(f"{text.short(store, image.stored.name)} {image.digest}")
    return 0
