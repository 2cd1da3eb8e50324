"""Check that every receipt is what was written. Exit code 1 names the first that is not."""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence

from hutch.cli.output import emit_json
from hutch.cli.receipts.open_ledger import add_box, box_id, reading
from hutch.errors import Invalid, NotFound
from hutch.keeper.receipts.export import check_export
from hutch.model.receipts import ChainCheck

BROKEN = 1


def add(parser: argparse.ArgumentParser) -> None:
    add_box(parser)
    parser.add_argument("--all", action="store_true", help="every chain (what is done without a box, too)")
    parser.add_argument("--file", metavar="EXPORT", help="an export instead of this machine's receipts; - for input")


def run(arguments: argparse.Namespace) -> int:
    if (arguments.box is not None) + bool(arguments.all) + bool(arguments.file) > 1:
        raise Invalid("give a box, --all or --file", op="receipts verify")
    checks = _of_file(arguments.file) if arguments.file else asyncio.run(_of_ledger(arguments))
    ok = all(check.ok for check in checks)
    if arguments.json:
        emit_json({"ok": ok, "chains": checks})
    else:
        for check in checks:
            print(_line(check))
        receipts = sum(check.count for check in checks)
        chains = "1 chain" if len(checks) == 1 else f"{len(checks)} chains"
        print(f"{receipts} receipts in {chains}: {'all in order' if ok else 'NOT what was written'}")
    return 0 if ok else BROKEN


def _of_file(name: str) -> Sequence[ChainCheck]:
    if name == "-":
        return check_export(sys.stdin.buffer)
    try:
        with open(name, "rb") as lines:
            return check_export(lines)
    except OSError as error:
        raise NotFound(f"{name} cannot be read: {error.strerror}", op="receipts verify") from error


async def _of_ledger(arguments: argparse.Namespace) -> Sequence[ChainCheck]:
    async with reading(arguments) as (receipts, store):
        return await receipts.verify(await box_id(receipts, store, arguments.box) if arguments.box else "")


def _line(check: ChainCheck) -> str:
    name = check.box or "the file"
    if check.pruned_at and check.ok:
        return f"{name}: pruned {time.strftime('%Y-%m-%d', time.localtime(check.pruned_at))}, as retention asks"
    if check.ok:
        return f"{name}: {check.count} receipts in order"
    where = {None: "", 0: " head record"}.get(check.broken, f" receipt {check.broken}")
    return f"{name}: BROKEN at{where}: {check.problem}" if where else f"{name}: BROKEN: {check.problem}"
