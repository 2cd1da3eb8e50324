"""From flags to a Hutch: the configuration, a keeper with its records in memory, and logs where they were asked for."""

import argparse
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hutch import logs
from hutch.config import Config
from hutch.errors import Unavailable

if TYPE_CHECKING:
    from hutch.keeper.embedded import Hutch


def configuration(arguments: argparse.Namespace) -> Config:
    config = Config.load(arguments.config)
    logs.configure(level="debug" if arguments.verbose else config.log_level, format=config.log_format)
    return config


@asynccontextmanager
async def hutch_of(arguments: argparse.Namespace) -> "AsyncIterator[Hutch]":
    """A Hutch for one command: nothing of it outlives the process, so its records stay in memory."""
    config = await with_image(arguments, configuration(arguments))
    if sys.platform != "linux" and (getattr(arguments, "provider", None) or config.provider) == "native":
        raise not_linux()
    from hutch.keeper.embedded import Hutch
    from hutch.keeper.keeper import Keeper
    from hutch.keeper.store.store import MemoryStore

    keeper = Keeper(config.but(receipts="off"), MemoryStore())  # nobody could read them when it has ended
    try:
        await keeper.start()
        yield Hutch(keeper=keeper)
    finally:
        await keeper.close()


async def with_image(arguments: argparse.Namespace, config: Config) -> Config:
    """If the native engine's box is to stand on an image of a registry, it is here when this returns."""
    if not config.enabled:
        return config
    profile = config.resolve_profile(arguments.profile)
    reference = (profile.locks("image") and profile.image) or arguments.image or config.image or profile.image or ""
    if not reference.startswith("oci:") or (arguments.provider or profile.provider or config.provider) != "native":
        return config
    from hutch.cli.image.ensure import ensure

    return await ensure(arguments, config, reference)


def not_linux() -> Unavailable:
    return Unavailable(
        f"the native engine is for Linux, and this is {sys.platform}",
        retryable=False,
        remedy="use Linux (a virtual machine or WSL 2 will do), or a provider that runs elsewhere",
    )
