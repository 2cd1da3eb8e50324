"""Show which session holds a box and until when. `--renew` extends a lease that is ours."""

import argparse
import asyncio
import time

from hutch.cli.box_text import lease, lease_text
from hutch.cli.keeper_choice import add_box, attach, visit
from hutch.cli.output import emit_json
from hutch.errors import Conflict
from hutch.model.boxes import BoxInfo


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--renew", action="store_true", help="extend it to its full time from now")
    add_box(parser)


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_lease(arguments))


async def _lease(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        record = await hutch.find(arguments.box)
        if arguments.renew:
            _check_ours(record, hutch.session)
            await (await attach(hutch, arguments)).renew()
            record = await hutch.find(record.id)
        held = lease(record, time.time())
    if arguments.json:
        emit_json({"id": record.id, "session": hutch.session, "lease": held})
    else:
        print(lease_text(held))
    return 0


def _check_ours(record: BoxInfo, session: str) -> None:
    """An expired lease ends for good (P6)."""
    held = record.lease
    if held is None or held.holder != session or not held.live(time.time()):
        raise Conflict(
            f"session {session} does not hold box {record.id}: there is nothing to renew",
            op="lease",
            remedy=f"hutch box takeover {record.spec.name or record.id}",
        )
