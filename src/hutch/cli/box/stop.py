"""End the processes of a persistent box and keep its files; its next use brings it back."""

import argparse
import asyncio

from hutch.cli.box.pause import means_of
from hutch.cli.keeper_choice import add_box, attach, is_visit, visit
from hutch.cli.output import emit_json
from hutch.errors import Conflict
from hutch.model.capabilities import Pause
from hutch.model.spec import Retention
from hutch.model.state import State


def add(parser: argparse.ArgumentParser) -> None:
    add_box(parser)


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_stop(arguments))


async def _stop(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        record = await hutch.find(arguments.box)
        if record.spec.retention is not Retention.PERSISTENT:
            means = await means_of(hutch, record.spec.provider)
            pausable = means is Pause.FREEZE or (means is Pause.SIGNALS and not is_visit(hutch))
            pause = "pause it, " if pausable else ""
            raise Conflict(
                f"box {record.id} is temporary: stopping it would lose its files",
                op="stop",
                remedy=f"{pause}destroy it, or create boxes with --persistent",
            )
        if record.state is not State.STOPPED:
            box = await attach(hutch, arguments)
            await box.stop()
        if arguments.json:
            emit_json({"id": record.id, "state": str(State.STOPPED)})
    return 0
