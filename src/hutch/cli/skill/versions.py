"""Show the versions of a skill that are kept, newest first."""

import argparse
import asyncio
import time

from hutch.cli.keeper_choice import visit
from hutch.cli.output import emit_json, printable, table
from hutch.model.durations import shown


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_versions(arguments))


async def _versions(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        versions = await hutch.skills.versions(arguments.name)
    if arguments.json:
        emit_json({"versions": [version.to_plain() for version in versions]})
        return 0
    rows = [
        (
            version.digest[:12], "pinned" if version.pinned else "active" if version.active else "",
            shown(time.time() - version.installed_at), printable(version.origin),
        )
        for version in versions
    ]  # fmt: skip
    table(("VERSION", "", "AGE", "FROM"), rows)
    return 0
