"""Find the skills in a tree of directories, and what is wrong with those that cannot be installed."""

import argparse
import asyncio
import os

from hutch.cli.output import emit_json, printable, table
from hutch.keeper.skills.skills import scan


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", nargs="?", default=".", help="default: here")


def run(arguments: argparse.Namespace) -> int:
    found = asyncio.run(scan(os.path.abspath(arguments.directory)))
    if arguments.json:
        emit_json({"skills": [each.to_plain() for each in found]})
    elif not found:
        print("there is no SKILL.md below it")
    else:
        table(("SKILL", "PATH", ""), [(each.name or "?", each.path, printable(each.problem)) for each in found])
    return 0
