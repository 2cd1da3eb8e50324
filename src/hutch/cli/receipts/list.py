"""Show the receipts of a box, oldest first; without a box, the chains there are."""

import argparse
import asyncio
import time

from hutch.cli.output import emit_json, printable, table
from hutch.cli.receipts.open_ledger import add_box, box_id, reading
from hutch.model.receipts import Chain, Receipt

PAGE = 1000


def add(parser: argparse.ArgumentParser) -> None:
    add_box(parser)
    parser.add_argument("--after", type=int, default=0, metavar="N", help="only receipts past this number")


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_list(arguments))


async def _list(arguments: argparse.Namespace) -> int:
    async with reading(arguments) as (receipts, store):
        if arguments.box is None:
            _show_chains(await receipts.chains(), as_json=arguments.json)
            return 0
        box, after, found = await box_id(receipts, store, arguments.box), arguments.after, list[Receipt]()
        while page := await receipts.list(box, after, PAGE):
            found += page
            after = page[-1].seq
    if arguments.json:
        emit_json({"receipts": found, "last": after})
    else:
        table(("NO", "TIME", "WHO", "OPERATION", "OUTCOME", "MS", "WHAT"), [_row(receipt) for receipt in found])
    return 0


def _row(receipt: Receipt) -> tuple[str, ...]:
    who = receipt.who
    outcome = receipt.error or receipt.cause or "done"
    if receipt.cause and receipt.exit_code:
        outcome = f"{receipt.cause} {receipt.exit_code}"
    return (
        str(receipt.seq), _moment(receipt.at), printable(who.key or who.session or who.role), receipt.op, outcome,
        f"{receipt.duration_ms:.1f}", printable(_what(receipt)),
    )  # fmt: skip


def _what(receipt: Receipt) -> str:
    text = " ".join(str(value) for name, value in receipt.details.items() if name in _TELLING)
    return text if len(text) <= 60 else text[:59] + "…"


_TELLING = ("command", "path", "source", "target", "pattern", "job", "reason", "from", "to", "server", "tool", "what")


def _show_chains(chains: tuple[Chain, ...], *, as_json: bool) -> None:
    if as_json:
        emit_json({"chains": chains})
    elif not chains:
        print("there are no receipts yet")
    else:
        table(("BOX", "OWNER", "RECEIPTS", "FIRST", "LAST", "STATE"), [_chain_row(chain) for chain in chains])


def _chain_row(chain: Chain) -> tuple[str, ...]:
    state = "pruned" if chain.pruned_at else "ended" if 0 < chain.ended_at <= time.time() else "open"
    return chain.box, chain.owner, str(chain.count), _moment(chain.begun_at), _moment(chain.last_at), state


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
