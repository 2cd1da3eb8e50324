"""Hold a box from now on, whoever held it; what the earlier holder still tries in it is refused."""

import argparse
import asyncio
import time

from hutch.cli.box_text import lease, lease_text
from hutch.cli.keeper_choice import add_box, visit
from hutch.cli.output import emit_json


def add(parser: argparse.ArgumentParser) -> None:
    add_box(parser)


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_take(arguments))


async def _take(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        box = await hutch.attach((await hutch.find(arguments.box)).id, takeover=True)
        record = await hutch.find(box.id)
        held = lease(record, time.time())
    if arguments.json:
        emit_json({"id": record.id, "session": hutch.session, "lease": held})
    else:
        print(lease_text(held))
    return 0
