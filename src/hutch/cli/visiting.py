"""A visit: this process keeps the boxes it is asked for as long as it runs, and then leaves them to themselves.

There need not be a server: records are on disk, and a box lives without a keeper by its dead-man's clock. Boxes that
this command does not name are not touched, so that commands can run side by side.
"""

import argparse
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hutch.cli.opening import configuration, not_linux, with_image
from hutch.config import Config
from hutch.errors import Disabled, Invalid
from hutch.model import durations

if TYPE_CHECKING:
    from hutch.keeper.embedded import Hutch
    from hutch.keeper.handles import BoxHandle

GRACE_SECONDS = 900.0
LONGEST_GRACE = 86400.0
"""How long a box lives after the last command that used it, unless it or the configuration says otherwise."""


def add_box(parser: argparse.ArgumentParser, *, many: bool = False) -> None:
    """The box or boxes a command is about, and the session in whose name it works."""
    parser.add_argument(
        "boxes" if many else "box",
        metavar="BOX",
        nargs="*" if many else None,
        help="its name, its id, or at least the first four characters of its id",
    )
    add_session(parser)


def add_session(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--session", metavar="NAME", help=f"who holds the lease (default: {session_name()})")


def session_name() -> str:
    """One for all commands of a user, so that the next command holds what this one has acquired."""
    return f"cli-{os.getuid() if hasattr(os, 'getuid') else 'user'}"


@asynccontextmanager
async def visit(arguments: argparse.Namespace, *, grace: float | None = None) -> "AsyncIterator[Hutch]":
    """A Hutch on the state directory; its boxes go on when it ends."""
    config = _settled(configuration(arguments), grace)
    if hasattr(arguments, "pull"):  # a box is to be made
        config = await with_image(arguments, config)
    if sys.platform != "linux" and (getattr(arguments, "provider", None) or config.provider) == "native":
        raise not_linux()
    from hutch.keeper.embedded import Hutch, durable

    hutch = Hutch(keeper=durable(config, visiting=True))
    hutch.session = getattr(arguments, "session", None) or session_name()
    async with hutch:
        yield hutch


async def attach(hutch: "Hutch", arguments: argparse.Namespace) -> "BoxHandle":
    """The box of the command line, leased to our session."""
    return await hutch.attach((await hutch.find(arguments.box)).id)


def _settled(config: Config, grace: float | None) -> Config:
    if not config.enabled:
        raise Disabled("Hutch is switched off", remedy="set enabled = true in hutch.toml")
    if config.store == "memory":
        raise Invalid(
            "the records of boxes are kept in memory, so no box outlives its process",
            remedy=f"change the setting `store` ({config.origin('store')}), or use `hutch run`",
        )
    if grace is not None and not 0 < grace <= LONGEST_GRACE:
        raise Invalid(
            f"a box cannot be kept for {durations.shown(grace)} without use", remedy="above 0 and up to 24h (--keep)"
        )
    if grace is None:
        grace = GRACE_SECONDS if config.origin("orphan_grace_sec") == "default" else config.orphan_grace_sec
    return config.but(orphan_grace_sec=grace)
