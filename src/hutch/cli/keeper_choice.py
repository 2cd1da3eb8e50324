"""Who keeps the boxes of a command: a server, or this process for as long as it runs.

There need not be a server: records are on disk, and a box lives without a keeper by its dead-man's clock. Boxes that
this command does not name are not touched, so that commands can run side by side.
"""

import argparse
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hutch.api import Box, Hutch
from hutch.cli.embedded import configuration, not_linux, with_image
from hutch.config import Config, announcement
from hutch.errors import Disabled, Invalid
from hutch.model import durations

if TYPE_CHECKING:
    from hutch.client.remote import RemoteHutch

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
async def visit(arguments: argparse.Namespace, *, grace: float | None = None) -> AsyncIterator[Hutch]:
    """A Hutch: a client of the server that was named or that owns the state directory, else a visit to the state
    directory. Its boxes go on when it ends."""
    config = configuration(arguments)
    _check_enabled(config)
    session = getattr(arguments, "session", None) or session_name()
    remote = client_of(arguments, config, session)
    if remote is not None:
        async with remote:
            await remote.check()
            yield remote
        return
    config = _settled(config, grace)
    if hasattr(arguments, "pull"):  # a box is to be made
        config = await with_image(arguments, config)
    if sys.platform != "linux" and (getattr(arguments, "provider", None) or config.provider) == "native":
        raise not_linux()
    from hutch.keeper.embedded import Hutch as EmbeddedHutch
    from hutch.keeper.embedded import durable

    hutch = EmbeddedHutch(keeper=durable(config, visiting=True))
    hutch.session = session
    async with hutch:
        yield hutch


def client_of(arguments: argparse.Namespace, config: Config, session: str) -> "RemoteHutch | None":
    """None: there is no server, so the command keeps the boxes it works with itself."""
    url = getattr(arguments, "server", None) or config.server_url
    owner = "" if url or config.store == "memory" else announcement.owner_of(config.state_dir)
    if not url and not owner:
        return None
    from hutch.client.remote import RemoteHutch
    from hutch.front import found_key

    key = "" if owner else found_key(config)
    ca = str(config.server_ca or "")
    return RemoteHutch(url or f"unix:{owner}", key=key, ca=ca, session=session, expected=bool(owner))


def is_visit(hutch: Hutch) -> bool:
    """Whether this process keeps the boxes it works with, and only as long as it runs."""
    return not hasattr(hutch, "url")


async def attach(hutch: Hutch, arguments: argparse.Namespace) -> Box:
    """The box of the command line, leased to our session."""
    return await hutch.attach((await hutch.find(arguments.box)).id)


def _check_enabled(config: Config) -> None:
    if not config.enabled:
        raise Disabled("Hutch is switched off", remedy="set enabled = true in hutch.toml")


def _settled(config: Config, grace: float | None) -> Config:
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
