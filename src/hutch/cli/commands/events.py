"""`hutch events`: what happened to boxes."""

import argparse
import asyncio
import time
from typing import TYPE_CHECKING

from hutch.cli.connect import open_hutch
from hutch.cli.output import emit_json, printable
from hutch.cli.parsers import CliCommand
from hutch.errors import Gone
from hutch.model.boxes import Event

if TYPE_CHECKING:
    from hutch.api import Hutch

POLL_SECONDS = 0.25
PAGE = 1000


class Events(CliCommand):
    """Show what happened to boxes, oldest first: made, moved from state to state, leased, warned, gone."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("-f", "--follow", action="store_true", help="go on; with --json one object for each event")
        parser.add_argument("--after", type=int, default=0, metavar="N", help="only events past this number")
        parser.add_argument("--box", metavar="BOX", help="only those of this box; of one that is gone by its whole id")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with open_hutch(arguments) as hutch:
            only = await _box_id(hutch, arguments.box) if arguments.box else ""
            after, found = arguments.after, list[Event]()
            while True:
                page = await hutch.events(after, PAGE)
                after = page[-1].seq if page else after
                matching = [event for event in page if only in ("", event.box_id)]
                if arguments.follow:
                    _show(matching, as_json=arguments.json)
                found += [] if arguments.follow else matching
                if len(page) == PAGE:
                    continue
                if not arguments.follow:
                    break
                await asyncio.sleep(POLL_SECONDS)
        if arguments.json:
            emit_json({"events": [event.to_plain() for event in found], "last": after})
        else:
            _show(found, as_json=False)
        return 0


async def _box_id(hutch: "Hutch", text: str) -> str:
    try:
        return (await hutch.find(text)).id
    except Gone:
        return text


def _show(events: list[Event], *, as_json: bool) -> None:
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
