"""Write an image as an OCI layout in one tar, which other engines can load."""

import argparse
import os
import secrets
import sys

from hutch.cli.image.open_store import store_of
from hutch.cli.output import emit_json
from hutch.errors import HutchError, Invalid
from hutch.images.archives import export


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="its name, or sha256: and the beginning of its digest")
    parser.add_argument("--output", "-o", metavar="FILE", help="where to (default: standard output)")


def run(arguments: argparse.Namespace) -> int:
    store = store_of(arguments)
    image = store.open(arguments.name)
    if not arguments.output:
        if arguments.json or sys.stdout.isatty():
            raise Invalid("an archive is no text", remedy="name a file with --output")
        export(store, image, sys.stdout.buffer)
        return 0
    draft = f"{arguments.output}.{secrets.token_hex(4)}~"
    try:
        with open(draft, "xb") as file:
            export(store, image, file)
        os.rename(draft, arguments.output)
    except HutchError:
        raise  # some are OSErrors too
    except OSError as error:
        raise Invalid(f"{arguments.output} cannot be written: {error.strerror}") from error
    finally:
        if os.path.exists(draft):
            os.unlink(draft)
    if arguments.json:
        emit_json({"file": arguments.output, "digest": image.digest, "bytes": os.stat(arguments.output).st_size})
    return 0
