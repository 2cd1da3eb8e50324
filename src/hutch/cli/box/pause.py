"""Freeze a box: no process of it runs until its next use. While it is paused its clocks stand still too."""

import argparse
import asyncio

from hutch.cli.output import emit_json
from hutch.cli.visiting import add_box, attach, is_visit, visit
from hutch.errors import Unsupported
from hutch.model.capabilities import Pause


def add(parser: argparse.ArgumentParser) -> None:
    add_box(parser)


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_pause(arguments))


async def _pause(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        box = await attach(hutch, arguments)
        able = {found.provider: found.pause for found in await hutch.providers()} if is_visit(hutch) else {}
        if able.get(box.spec.provider) is Pause.SIGNALS:
            raise Unsupported(
                "without a control group a box is paused by the process that keeps it, and this one ends now",
                op="pause",
                remedy="give Hutch control groups (`hutch doctor`), or stop the box's processes",
            )
        await box.pause()
        if arguments.json:
            emit_json({"id": box.id, "state": str(await box.state())})
    return 0
