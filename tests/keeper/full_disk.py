"""A ledger on a disk that is really full: run inside a mount namespace of its own, with a small tmpfs at `argv[1]`."""

import asyncio
import json
import os
import sys
from pathlib import Path

from hutch.keeper.receipts.ledger_sqlite import SqliteLedger
from hutch.keeper.receipts.queue import ReceiptQueue
from hutch.keeper.receipts.receipts import Receipts, losses
from hutch.keeper.store.store import MemoryStore
from hutch.model.receipts import GONE, Receipt

BOX = "b" * 20


def draft(op: str) -> Receipt:
    return Receipt(box=BOX, owner="o", at=5.0, op=op, details={"command": "x" * 2000})


def fill(path: Path) -> None:
    """Fill the disk to the last byte."""
    out = os.open(path, os.O_WRONLY | os.O_CREAT)
    for size in (4096, 1):
        try:
            while True:
                os.write(out, b"x" * size)
        except OSError:
            continue
    os.close(out)


async def main(directory: Path) -> None:
    ledger = SqliteLedger(directory / "receipts.db")
    queue = ReceiptQueue(ledger)
    queue.put(draft("exec"))
    await queue.flush()
    fill(directory / "filler")
    for op in ["exec"] * 50 + [GONE]:
        queue.put(draft(op))
    while not queue.failing:
        await asyncio.sleep(0.01)
    lost = await queue.close()
    await ledger.close()

    (directory / "filler").unlink()
    losses.RECHECK_SECONDS = 0.0
    ledger = SqliteLedger(directory / "receipts.db")
    ended = [await losses.end_chains(ledger, MemoryStore()) for _ in range(2)]
    receipts = Receipts(ledger, mode="off")
    [check] = await receipts.verify(BOX)
    ops = [receipt.op for receipt in await receipts.list(BOX)]
    [chain] = await receipts.chains()
    answer = {"lost": len(lost), "ended": ended, "ok": check.ok, "ops": ops, "over": chain.ended_at > 0}
    print(json.dumps(answer))
    await receipts.close()


asyncio.run(main(Path(sys.argv[1])))
