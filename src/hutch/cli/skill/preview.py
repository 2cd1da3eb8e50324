"""Show what installing a skill would bring and change, and install nothing."""

import argparse
import asyncio

from hutch.cli.keeper_choice import visit
from hutch.cli.output import emit_json
from hutch.cli.skill.source import EPILOG, add_source, named
from hutch.cli.skill.text import tell_preview

__all__ = ["EPILOG", "add", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    add_source(parser)


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_preview(arguments))


async def _preview(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        found = await hutch.skills.preview(arguments.source, **named(arguments))
    if arguments.json:
        emit_json(found.to_plain())
    else:
        tell_preview(found)
    return 0
