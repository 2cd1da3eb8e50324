"""Show the boxes there are. Looking does not use them: no clock starts anew."""

import argparse
import asyncio
import os
from typing import TYPE_CHECKING, Any

from hutch.cli.box_text import HEADER, details, row
from hutch.cli.keeper_choice import visit
from hutch.cli.output import columns, emit_json
from hutch.cli.tables import REDRAW_SECONDS, Board

if TYPE_CHECKING:
    from hutch.api import Hutch


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--watch", action="store_true", help="go on, and show every change (Ctrl-C ends it)")
    parser.add_argument("--names", action="store_true", help="only names and ids, one on each line")


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_list(arguments))


async def _list(arguments: argparse.Namespace) -> int:
    async with visit(arguments) as hutch:
        if arguments.watch:
            await _watch(hutch, as_json=arguments.json)
        boxes = await _boxes(hutch)
        if arguments.json:
            emit_json({"boxes": boxes})
        elif arguments.names:
            for box in boxes:
                print(f"{box['name']}\n{box['id']}" if box["name"] else box["id"])
        else:
            print("\n".join(_table(boxes)))
    return 0


async def _boxes(hutch: "Hutch") -> list[dict[str, Any]]:
    return [details(record) for record in await hutch.boxes()]


def _table(boxes: list[dict[str, Any]]) -> list[str]:
    if not boxes:
        return ["there is no box; `hutch box create` makes one"]
    return columns(HEADER, [row(box) for box in boxes])


async def _watch(hutch: "Hutch", *, as_json: bool) -> None:
    """On a terminal the table in its place; elsewhere a line, or an object, whenever a box has changed."""
    live = os.isatty(1) and not as_json
    board, before = Board(), dict[str, str]()
    while True:
        boxes = await _boxes(hutch)
        if live:
            board.draw(_table(boxes))
        else:
            before = _tell_changes(boxes, before, as_json=as_json)
        await asyncio.sleep(REDRAW_SECONDS)


def _tell_changes(boxes: list[dict[str, Any]], before: dict[str, str], *, as_json: bool) -> dict[str, str]:
    now = {box["id"]: box["state"] for box in boxes}
    for box_id, state in [*now.items(), *((box_id, "gone") for box_id in before if box_id not in now)]:
        if before.get(box_id) == state:
            continue
        if as_json:
            emit_json({"id": box_id, "state": state})
        else:
            print(f"{box_id} {state}", flush=True)
    return now
