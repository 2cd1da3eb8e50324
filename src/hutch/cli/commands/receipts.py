"""Receipts: one for each operation on a box, chained, so that a change of any byte is found.

They outlive their box by `receipts_days`. They are read where they are kept: no server has to run.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from hutch.cli.connect import load_config
from hutch.cli.output import emit_json, note, printable, table
from hutch.cli.parsers import CliCommand
from hutch.config import directories
from hutch.errors import Invalid, NotFound
from hutch.keeper.access import lookup
from hutch.keeper.receipts.export import check_export
from hutch.keeper.receipts.receipts import Receipts
from hutch.keeper.store.open_store import open_key, open_ledger, open_store
from hutch.keeper.store.store import Store
from hutch.model.receipts import Chain, ChainCheck, Receipt

PAGE = 1000
DIFFERS = 1
BROKEN = 1
ENDS_AND_BEGINNINGS = ("box.created", "box.claimed", "box.gone", "box.destroyed")
SHOWN_DETAILS = (
    "command", "path", "source", "target", "pattern", "job", "reason", "from", "to", "server", "tool", "what",
)  # fmt: skip


class List(CliCommand):
    """Show what was done to a box, oldest first; without a box, the chains there are.

    Steps that Hutch takes by itself between creation and end are left out, unless --all asks for them.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        _add_box(parser)
        parser.add_argument("--after", type=int, default=0, metavar="N", help="only receipts past this number")
        parser.add_argument("--all", action="store_true", help="also the steps that Hutch took by itself")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with _open_receipts(arguments) as (receipts, store):
            if arguments.box is None:
                _show_chains(await receipts.chains(), as_json=arguments.json)
                return 0
            box, after, found = await _box_id(receipts, store, arguments.box), arguments.after, list[Receipt]()
            while page := await receipts.list(box, after, PAGE):
                found += page
                after = page[-1].seq
        if arguments.json:
            emit_json({"receipts": found, "last": after})
        else:
            shown = [receipt for receipt in found if arguments.all or not _is_step(receipt)]
            header = ("NO", "TIME", "WHO", "OPERATION", "OUTCOME", "MS", "WHAT")
            table(header, [_row(receipt) for receipt in shown], ("MS", "WHO"))
            if len(shown) < len(found):
                note(f"{len(found) - len(shown)} steps of Hutch itself are not shown (--all shows them)")
        return 0


def _is_step(receipt: Receipt) -> bool:
    """Return whether a receipt only records that a box reached its next state, or that a job was put away."""
    step = receipt.op == "job.forget" or (receipt.op.startswith("box.") and receipt.op not in ENDS_AND_BEGINNINGS)
    return step and not receipt.error


def _row(receipt: Receipt) -> tuple[str, ...]:
    who = receipt.who
    outcome = receipt.error or receipt.cause or "done"
    if receipt.cause and receipt.exit_code:
        outcome = f"{receipt.cause} {receipt.exit_code}"
    return (
        str(receipt.seq), _moment(receipt.at), printable(who.key or who.session or who.role), receipt.op, outcome,
        f"{receipt.duration_ms:.1f}" if receipt.duration_ms else "-", printable(_summary(receipt)),
    )  # fmt: skip


def _summary(receipt: Receipt) -> str:
    text = " ".join(str(value) for name, value in receipt.details.items() if name in SHOWN_DETAILS)
    return text if len(text) <= 60 else text[:59] + "…"


def _show_chains(chains: tuple[Chain, ...], *, as_json: bool) -> None:
    if as_json:
        emit_json({"chains": chains})
    elif not chains:
        print("there are no receipts yet")
    else:
        header = ("BOX", "OWNER", "RECEIPTS", "FIRST", "LAST", "STATE")
        table(header, [_chain_row(chain) for chain in chains], ("FIRST",))


def _chain_row(chain: Chain) -> tuple[str, ...]:
    state = "pruned" if chain.pruned_at else "ended" if 0 < chain.ended_at <= time.time() else "open"
    return chain.box, chain.owner, str(chain.count), _moment(chain.begun_at), _moment(chain.last_at), state


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


class Show(CliCommand):
    """Show one receipt as JSON; or tell whether its command was a certain text, also where that is cut or hidden."""

    epilog = "example: hutch receipts show dev 7 --matches 'make test'      exit code 1 if it was another command"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        _add_box(parser, needed=True)
        parser.add_argument("number", metavar="NO", type=int, help="its number in the box's chain")
        parser.add_argument("--matches", metavar="TEXT", help="whether this was it, whole; - for standard input")
        parser.add_argument("--detail", default="command", metavar="NAME", help="which detail is meant (command)")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with _open_receipts(arguments) as (receipts, store):
            box = await _box_id(receipts, store, arguments.box)
            if arguments.matches is not None:
                text = sys.stdin.read() if arguments.matches == "-" else arguments.matches
                same = await receipts.matches(box, arguments.number, arguments.detail, text)
                emit_json({"box": box, "number": arguments.number, "detail": arguments.detail, "matches": same})
                return 0 if same else DIFFERS
            found = await receipts.list(box, arguments.number - 1, 1) if arguments.number > 0 else ()
        if not found or found[0].seq != arguments.number:
            raise NotFound(f"box {box} has no receipt {arguments.number}", remedy=f"hutch receipts list {box}")
        emit_json(found[0])
        return 0


class Verify(CliCommand):
    """Check that every receipt is what was written. Exit code 1 names the first that is not."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        _add_box(parser)
        parser.add_argument("--all", action="store_true", help="every chain (what is done without a box, too)")
        parser.add_argument(
            "--file", metavar="EXPORT", help="an export instead of this machine's receipts; - for input"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        if (arguments.box is not None) + bool(arguments.all) + bool(arguments.file) > 1:
            raise Invalid("give a box, --all or --file", op="receipts verify")
        checks = _check_file(arguments.file) if arguments.file else asyncio.run(_check_ledger(arguments))
        ok = all(check.ok for check in checks)
        if arguments.json:
            emit_json({"ok": ok, "chains": checks})
        else:
            for check in checks:
                print(_check_line(check))
            receipts = sum(check.count for check in checks)
            chains = "1 chain" if len(checks) == 1 else f"{len(checks)} chains"
            print(f"{receipts} receipts in {chains}: {'all in order' if ok else 'NOT what was written'}")
        return 0 if ok else BROKEN


def _check_file(name: str) -> Sequence[ChainCheck]:
    if name == "-":
        return check_export(sys.stdin.buffer)
    try:
        with open(name, "rb") as lines:
            return check_export(lines)
    except OSError as error:
        raise NotFound(f"{name} cannot be read: {error.strerror}", op="receipts verify") from error


async def _check_ledger(arguments: argparse.Namespace) -> Sequence[ChainCheck]:
    async with _open_receipts(arguments) as (receipts, store):
        return await receipts.verify(await _box_id(receipts, store, arguments.box) if arguments.box else "")


def _check_line(check: ChainCheck) -> str:
    name = check.box or "the file"
    if check.pruned_at and check.ok:
        return f"{name}: pruned {time.strftime('%Y-%m-%d', time.localtime(check.pruned_at))}, as retention asks"
    if check.ok:
        return f"{name}: {check.count} receipts in order"
    where = {None: "", 0: " head record"}.get(check.broken, f" receipt {check.broken}")
    return f"{name}: BROKEN at{where}: {check.problem}" if where else f"{name}: BROKEN: {check.problem}"


class Export(CliCommand):
    """Print receipts as lines of JSON that can be verified anywhere: of one box, or of all."""

    epilog = "example: hutch receipts export > receipts.jsonl; hutch receipts verify --file receipts.jsonl"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        _add_box(parser)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        async with _open_receipts(arguments) as (receipts, store):
            box = await _box_id(receipts, store, arguments.box) if arguments.box else ""
            async for piece in receipts.export(box):
                sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return 0


# --- the configured store -------------------------------------------------------------------------------------------


def _add_box(parser: argparse.ArgumentParser, *, needed: bool = False) -> None:
    parser.add_argument(
        "box", metavar="BOX", nargs=None if needed else "?", help="its name or id; one that is gone by its id"
    )


@asynccontextmanager
async def _open_receipts(arguments: argparse.Namespace) -> AsyncIterator[tuple[Receipts, Store]]:
    """Open the receipts to read them while other processes write."""
    config = load_config(arguments)
    if config.store == "memory" or not config.enabled:
        raise Invalid(
            "there are no receipts to read: boxes are switched off, or their records are kept in memory",
            remedy="change the settings `enabled` and `store`",
        )
    directories.make(config.state_dir)
    store, _ = open_store(config)
    receipts = Receipts(open_ledger(config, store), mode="off", key=open_key(config))
    try:
        yield receipts, store
    finally:
        await receipts.close()
        await store.close()


async def _box_id(receipts: Receipts, store: Store, text: str) -> str:
    """Find the box that `text` names: a live one also by its name, a destroyed one by its id or the beginning of it."""
    try:
        return (await lookup.find(store, text)).id
    except NotFound:
        pass
    found = [chain.box for chain in await receipts.chains() if chain.box.startswith(text)]
    if len(found) != 1 or len(text) < lookup.SHORTEST_PREFIX:
        raise NotFound(
            f"{len(found) or 'no'} boxes with receipts begin with {text!r}", remedy="`hutch receipts list` shows them"
        )
    return found[0]
