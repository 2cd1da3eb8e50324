"""Show what happened to boxes, oldest first: made, moved from state to state, leased, warned, gone."""

import argparse
import asyncio
import time
from typing import TYPE_CHECKING

from hutch.cli.keeper_choice import visit
from hutch.cli.output import emit_json, printable
from hutch.errors import Gone
from hutch.model.boxes import Event

if TYPE_CHECKING:
    from hutch.api import Hutch

LOOK_SECONDS = 0.25
PAGE = 1000


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="go on; with --json one object for each event")
    parser.add_argument("--after", type=int, default=0, metavar="N", help="only events past this number")
    parser.add_argument("--box", metavar="BOX", help="only those of this box; of one that is gone by its whole id")


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_events(arguments))


async def _events(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        only = await _id(hutch, arguments.box) if arguments.box else ""
        after, found = arguments.after, list[Event]()
        while True:
            page = await hutch.events(after, PAGE)
            after = page[-1].seq if page else after
            fitting = [event for event in page if only in ("", event.box_id)]
            if arguments.follow:
                _tell(fitting, as_json=arguments.json)
            found += [] if arguments.follow else fitting
            if len(page) == PAGE:
                continue
            if not arguments.follow:
                break
            await asyncio.sleep(LOOK_SECONDS)
    if arguments.json:
        emit_json({"events": [event.to_plain() for event in found], "last": after})
    else:
        _tell(found, as_json=False)
    return 0


async def _id(hutch: "Hutch", text: str) -> str:
    try:
        return (await hutch.find(text)).id
    except Gone:
        return text


def _tell(events: list[Event], *, as_json: bool) -> None:
    for event in events:
        if as_json:
            emit_json(event.to_plain())
        else:
            print(_line(event), flush=True)


def _line(event: Event) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at))
    move = f" {event.old} → {event.new}" if event.old and event.new else f" {event.new}" if event.new else ""
    return f"{event.seq:>6}  {at}  {event.box_id}  {event.kind}{move}" + (
        f": {printable(event.reason)}" if event.reason else ""
    )
