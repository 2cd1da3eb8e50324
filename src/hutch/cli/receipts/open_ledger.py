"""The receipts of the configured store, opened to be read beside whoever writes them."""

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hutch.cli.embedded import configuration
from hutch.config import directories
from hutch.errors import Invalid, NotFound
from hutch.keeper.access import lookup
from hutch.keeper.receipts.receipts import Receipts
from hutch.keeper.store.open_store import open_key, open_ledger, open_store
from hutch.keeper.store.store import Store


@asynccontextmanager
async def reading(arguments: argparse.Namespace) -> AsyncIterator[tuple[Receipts, Store]]:
    config = configuration(arguments)
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


async def box_id(receipts: Receipts, store: Store, text: str) -> str:
    """The box that `text` means: a live one by its name too, one that is gone by its id or the beginning of it."""
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


def add_box(parser: argparse.ArgumentParser, *, needed: bool = False) -> None:
    parser.add_argument(
        "box", metavar="BOX", nargs=None if needed else "?", help="its name or id; one that is gone by its id"
    )
