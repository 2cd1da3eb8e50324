"""Open a shell in a new box, on this terminal; the box is gone when the shell ends."""

import argparse
import asyncio
import os

from hutch.cli.options import add_box_options
from hutch.cli.run import in_new_box
from hutch.errors import Invalid

SHELL = ("sh", "-c", "exec $(command -v bash || echo sh) -i")


def add(parser: argparse.ArgumentParser) -> None:
    add_box_options(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.json or not (os.isatty(0) and os.isatty(1)):
        raise Invalid(
            "hutch shell needs a terminal for its input and output",
            op="shell",
            remedy="to run a script use: hutch run -- sh < script",
        )
    return asyncio.run(in_new_box(arguments, SHELL, terminal=True, timeout=0))
