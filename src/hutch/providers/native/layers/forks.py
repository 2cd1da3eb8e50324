"""A fork: a new box made like any other, which then gets the layers of the box that it was forked from.

The layers of a temporary box are in a tmpfs, which the fork mounts too. Those of a persistent one lie in its store: the
fork's own store links their files, so that both boxes can go without the other.
"""

import asyncio
import json
import os
from collections.abc import Awaitable
from typing import TYPE_CHECKING, cast

from hutch.errors import EngineError
from hutch.model.spec import Order
from hutch.providers.base import Instance, InstanceRecord
from hutch.providers.native import cleanup
from hutch.providers.native.layers import trees
from hutch.providers.native.layers.adoption import adopted
from hutch.providers.native.layers.client import NativeLayers, SharedLayers, close, layers_of
from hutch.providers.native.rootfs.root import upper_directory

if TYPE_CHECKING:
    from hutch.providers.native.instance import NativeInstance
    from hutch.providers.native.provider import NativeProvider


async def fork(
    provider: "NativeProvider", order: Order, planned: InstanceRecord, source: Instance, state: Awaitable[str]
) -> "tuple[NativeInstance, str]":
    """Make the box with the layers of the other, which are being frozen."""
    frozen = await state
    store = planned.data.get("store")
    if isinstance(store, str):
        return await _fork_store(provider, order, planned, str(source.record.data["store"]), store, frozen), frozen
    layers = layers_of(frozen)
    _, shared = await cast(NativeLayers, source.layers).share()
    try:
        return await provider.create(order, planned, SharedLayers(layers, shared)), ":".join(adopted(layers))
    finally:
        close(shared)


async def _fork_store(
    provider: "NativeProvider", order: Order, planned: InstanceRecord, source: str, store: str, state: str
) -> "NativeInstance":
    try:
        cleanup.make_store(store, order.keeper)
        await asyncio.to_thread(_link_layers, source, store, state.split(":"))
        return await provider.create(order, planned)
    except BaseException as error:
        await asyncio.shield(provider.destroy(planned))
        if isinstance(error, OSError) and not isinstance(error, EngineError):
            raise EngineError(
                f"the files of the box could not be shared with a fork: {error}", op="fork",
                remedy="make its directories readable for its user, or free disk space; nothing was made",
            ) from error  # fmt: skip
        raise


def _link_layers(source: str, store: str, state: list[str]) -> None:
    """Give a new store these layers, which nobody writes to any more, under a new topmost one."""
    for layer in state:
        part = 0
        while part == 0 or os.path.isdir(f"{source}/{upper_directory(layer, part)}"):
            trees.squash([f"{source}/{upper_directory(layer, part)}"], f"{store}/{upper_directory(layer, part)}")
            part += 1
    top = str(max(map(int, state)) + 1)
    for name, content in ((f"{top}.stack", json.dumps(state)), ("last", top), ("current", top)):
        with open(f"{store}/{name}", "w", encoding="utf-8") as file:
            file.write(content)
