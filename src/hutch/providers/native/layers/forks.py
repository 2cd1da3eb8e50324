"""A fork: a new box made like any other, which then gets the layers of the box that it was forked from."""

import asyncio
from typing import TYPE_CHECKING, cast

from hutch.errors import Unsupported
from hutch.model.spec import Order
from hutch.providers.base import Instance, InstanceRecord
from hutch.providers.native.layers.client import NativeLayers, close

if TYPE_CHECKING:
    from hutch.providers.native.instance import NativeInstance
    from hutch.providers.native.provider import NativeProvider


async def fork(
    provider: "NativeProvider", order: Order, planned: InstanceRecord, source: Instance, state: str
) -> "tuple[NativeInstance, str]":
    """Make the box while the layers of the other are being shared, and have it adopt them."""
    layers = cast(NativeLayers, source.layers)
    if "store" in planned.data:
        raise Unsupported("a persistent box cannot be forked yet", op="fork", remedy="fork a temporary one")
    sharing = asyncio.ensure_future(layers.share())
    try:
        made = await provider.create(order, planned)
    except BaseException:
        sharing.add_done_callback(_drop)
        raise
    try:
        count, trees = await sharing
        try:
            return made, await made.layers.adopt(state, count, trees)
        finally:
            close(trees)
    except BaseException:
        await made.close()
        await asyncio.shield(provider.destroy(made.record))
        raise


def _drop(sharing: "asyncio.Future[tuple[int, list[int]]]") -> None:
    if not sharing.cancelled() and sharing.exception() is None:
        close(sharing.result()[1])
