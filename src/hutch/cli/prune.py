"""Remove what dead processes left behind: boxes whose keeper is gone, never what a live one owns."""

import argparse
import asyncio
import sys

from hutch.cli.embedded import configuration, not_linux
from hutch.cli.output import emit_json
from hutch.config import Config
from hutch.keeper.takeover.prune import prune
from hutch.providers.base import Leftover

INCOMPLETE = 1


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")


def run(arguments: argparse.Namespace) -> int:
    config = configuration(arguments)
    if sys.platform != "linux" and config.provider == "native":
        raise not_linux()
    found = asyncio.run(_prune(config, dry_run=arguments.dry_run))
    if arguments.json:
        emit_json({"dry_run": arguments.dry_run, "leftovers": [leftover.to_plain() for leftover in found]})
    else:
        _show(found, dry_run=arguments.dry_run)
    return INCOMPLETE if any(leftover.problem for leftover in found) else 0


async def _prune(config: Config, *, dry_run: bool) -> list[Leftover]:
    return [leftover async for leftover in prune(config, dry_run=dry_run)]


def _show(found: list[Leftover], *, dry_run: bool) -> None:
    for leftover in found:
        done = f"could not be removed: {leftover.problem}" if leftover.problem else "would go" if dry_run else "removed"
        print(f"{leftover.kind} {leftover.name}: {done}")
    if not found:
        print("nothing was left behind")
