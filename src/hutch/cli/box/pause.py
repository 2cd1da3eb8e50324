"""Freeze a box: no process of it runs until its next use. While it is paused its clocks stand still too."""

import argparse
import asyncio

from hutch.api import Hutch
from hutch.cli.keeper_choice import add_box, attach, is_visit, visit
from hutch.cli.output import emit_json
from hutch.errors import Unsupported
from hutch.model.capabilities import Pause
from hutch.model.spec import Retention


def add(parser: argparse.ArgumentParser) -> None:
    add_box(parser)


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_pause(arguments))


async def means_of(hutch: Hutch, provider: str) -> Pause:
    """By what a box of this provider is paused; only one that is frozen stays so when its keeper ends."""
    return next((found.pause for found in await hutch.providers(provider)), Pause.NONE)


async def _pause(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        box = await attach(hutch, arguments)
        if is_visit(hutch) and await means_of(hutch, box.spec.provider) is Pause.SIGNALS:
            stops = "stop it, which keeps its files, or " if box.spec.retention is Retention.PERSISTENT else ""
            raise Unsupported(
                "without a control group a box is paused by the process that keeps it, and this one ends now",
                op="pause",
                remedy=f"{stops}pause it through a server (`hutch serve`), which keeps it, or give Hutch control "
                "groups (`hutch doctor`)",
            )
        await box.pause()
        if arguments.json:
            emit_json({"id": box.id, "state": str(await box.state())})
    return 0
