"""End boxes: their processes, their files, their records. Volumes stay."""

import argparse
import asyncio
from typing import TYPE_CHECKING

from hutch.cli.keeper_choice import add_box, visit
from hutch.cli.output import emit_json, fail
from hutch.errors import BoxBusy, HutchError, Invalid

if TYPE_CHECKING:
    from hutch.api import Hutch

FAILED = 125


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="all there are, but for those that live processes use")
    parser.add_argument("--force", action="store_true", help="also boxes that another session holds")
    add_box(parser, many=True)


def run(arguments: argparse.Namespace) -> int:
    if arguments.all == bool(arguments.boxes):
        raise Invalid("name the boxes, or say --all", op="destroy", remedy="`hutch box list` shows those there are")
    return asyncio.run(_destroy(arguments))


async def _destroy(arguments: argparse.Namespace) -> int:
    destroyed: list[str] = []
    failures: list[HutchError] = []
    async with visit(arguments) as hutch:
        for text in arguments.boxes or await _all(hutch):
            try:
                destroyed.append(await _end(hutch, text, force=arguments.force))
            except HutchError as error:  # the others are to go all the same
                failures.append(error)
    if arguments.json:
        emit_json({"destroyed": destroyed, "errors": [failure.to_wire() for failure in failures]})
    else:
        for box_id in destroyed:
            print(box_id)
        for failure in failures:
            fail(failure, as_json=False)
    return FAILED if failures else 0


async def _all(hutch: "Hutch") -> list[str]:
    return [box.id for box in await hutch.boxes() if not box.elsewhere]


async def _end(hutch: "Hutch", text: str, *, force: bool) -> str:
    record = await hutch.find(text)
    try:
        await hutch.destroy(record.id, force=force)
    except BoxBusy as busy:
        raise BoxBusy(busy.message, details=busy.details, remedy="wait for its lease to end, or --force") from busy
    return record.id
