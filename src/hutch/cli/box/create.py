"""Make a box that stays, and print its id. It lives 15 minutes without use, unless --keep says otherwise.

Nothing keeps the box between commands but its own clock, so a job that runs in it does not keep it alive either.
"""

import argparse
import asyncio
from typing import Any

from hutch.cli.box_text import details
from hutch.cli.keeper_choice import add_session, is_visit, visit
from hutch.cli.options import add_box_options, duration, spec_of
from hutch.cli.output import emit_json, note
from hutch.errors import Invalid

EPILOG = """\
examples:
  hutch box create --name dev --profile code
  hutch box exec dev -- python3 -c 'print(6 * 7)'
  hutch box create --persistent --keep 2h          after two hours without use its processes end, its files stay
"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", help="a name for it, which no other box has")
    life = parser.add_argument_group("its life")
    life.add_argument("--keep", type=duration, metavar="TIME", help="how long it lives without use: 90s, 2h (15m)")
    life.add_argument("--persistent", action="store_true", help="its files stay when it ends for lack of use")
    life.add_argument("--ttl", type=duration, metavar="TIME", help="when it ends however much it is used")
    parser.add_argument("--label", action="append", default=[], metavar="K=V", help="a label, shown by list and show")
    add_box_options(parser)
    add_session(parser)


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_create(arguments))


async def _create(arguments: argparse.Namespace) -> int:
    async with visit(arguments, grace=arguments.keep) as hutch:
        asked = _spec(arguments)
        if arguments.keep is not None and not is_visit(hutch):
            asked["idle_timeout_sec"] = arguments.keep  # a server's clocks do what a visit leaves to the box's own
        box = await hutch.create(**asked)
        if arguments.json:
            record = await hutch.find(box.id)
            emit_json(details(record))
        else:
            for adjustment in box.adjustments:
                note(str(adjustment))
            print(box.id)
    return 0


def _spec(arguments: argparse.Namespace) -> dict[str, Any]:
    asked = spec_of(arguments)
    if arguments.name is not None:
        asked["name"] = arguments.name
    if arguments.persistent:
        asked["retention"] = "persistent"
    if arguments.ttl is not None:
        asked["ttl_sec"] = arguments.ttl
    if arguments.label:
        asked["labels"] = dict(_label(text) for text in arguments.label)
    return asked


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise Invalid(f"--label {text!r} is not NAME=VALUE", remedy="for example --label task=42")
    return name, value
