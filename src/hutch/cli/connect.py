"""Which process keeps the boxes of a command: a server, or this process while the command runs.

This is the only module of the command line that knows the difference; commands use the protocols of `hutch.api`.
Boxes outlive a command without any server: their records are on disk, and each box ends by its own timer unless a
later command uses it. A command touches only the boxes it names, so commands can run side by side.
"""

import argparse
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from hutch import logs
from hutch.cli.options import session_name
from hutch.cli.output import note
from hutch.config import Config
from hutch.errors import Disabled, Invalid, Unavailable
from hutch.model import units

# Loaded at first use: `hutch run` needs neither the public protocols nor a client.
if TYPE_CHECKING:
    from hutch.api import Box, Hutch, Job
    from hutch.client.disabled import DisabledHutch
    from hutch.client.remote import RemoteHutch
    from hutch.keeper.embedded import Hutch as EmbeddedHutch
    from hutch.model.mcp import McpServer, McpServerInfo, McpTool
    from hutch.model.results import Result
    from hutch.providers.base import Command
    from hutch.providers.handles import Process

Attached: TypeAlias = "Process | Job"
"""A command that runs in a box which this process or a server keeps."""
GRACE_SECONDS = 900.0
"""How long a box lives after the last command that used it, unless it or the configuration says otherwise."""
LONGEST_GRACE_SECONDS = 86400.0


def load_config(arguments: argparse.Namespace) -> Config:
    """Load the configuration that the command line names, and set up logging as it says."""
    config = Config.load(arguments.config)
    logs.configure(level="debug" if arguments.verbose else config.log_level, format=config.log_format)
    return config


@asynccontextmanager
async def temporary_hutch(arguments: argparse.Namespace) -> "AsyncIterator[EmbeddedHutch]":
    """Open a Hutch for one command whose boxes end with it, so their records stay in memory."""
    config = await _with_image(arguments, load_config(arguments))
    _check_platform(arguments, config)
    from hutch.keeper.embedded import Hutch
    from hutch.keeper.keeper import Keeper
    from hutch.keeper.store.store import MemoryStore

    keeper = Keeper(config.but(receipts="off"), MemoryStore())  # nobody could read receipts after the process ended
    try:
        await keeper.start()
        yield Hutch(keeper=keeper)
    finally:
        await keeper.close()


@asynccontextmanager
async def open_hutch(arguments: argparse.Namespace, *, grace: float | None = None) -> "AsyncIterator[Hutch]":
    """Open a Hutch whose boxes go on when the command ends.

    It is a client of the server that was named or that owns the state directory; otherwise this process opens the
    state directory itself.
    """
    config = load_config(arguments)
    if not config.enabled:
        raise Disabled("Hutch is switched off", remedy="set enabled = true in hutch.toml")
    if (client := client_of(arguments, config)) is not None:
        async with client:
            await client.check()
            yield client
        return
    config = _with_grace(config, grace)
    if hasattr(arguments, "pull"):  # only commands that create a box have this option
        config = await _with_image(arguments, config)
    _check_platform(arguments, config)
    async with visiting_hutch(config, _session(arguments)) as hutch:
        yield hutch


def client_of(arguments: argparse.Namespace, config: Config) -> "RemoteHutch | None":
    """Make a client if a server keeps the boxes; None means that this process keeps them."""
    from hutch.front import client_of_server

    return client_of_server(config, getattr(arguments, "server", None) or "", session=_session(arguments))


def visiting_hutch(config: Config, session: str) -> "EmbeddedHutch":
    """Make a Hutch on the state directory that leaves alone every box it is not asked for."""
    from hutch.keeper.embedded import Hutch, open_keeper

    hutch = Hutch(keeper=open_keeper(config, visiting=True))
    hutch.session = session
    return hutch


def status_hutch(arguments: argparse.Namespace) -> "RemoteHutch | EmbeddedHutch | DisabledHutch":
    """Choose the Hutch that a command would use, without a check that it can be used."""
    config = load_config(arguments)
    if not config.enabled:
        from hutch.client.disabled import DisabledHutch

        return DisabledHutch(config.origin("enabled"))
    return client_of(arguments, config) or visiting_hutch(config, session_name())


def keeps_boxes(hutch: "Hutch") -> bool:
    """Return whether this process keeps the boxes it works with, and only as long as it runs."""
    return not hasattr(hutch, "url")


async def attach_box(hutch: "Hutch", arguments: argparse.Namespace) -> "Box":
    """Return the box that the command line names, leased to our session."""
    return await hutch.attach((await hutch.find(arguments.box)).id)


# --- what this process does itself if it keeps the box --------------------------------------------------------------


class Started:
    """A command that was started, and its result once it has ended."""

    def __init__(self, process: Attached) -> None:
        self.process = process
        self.result: Result | None = None


@asynccontextmanager
async def started(box: "Box", order: "Command") -> AsyncIterator[Started]:
    """Start a command. In a box that this process keeps, its start, input and end are one receipt."""
    from hutch.keeper.access.handles import BoxHandle
    from hutch.keeper.access.jobs import command_details

    if not isinstance(box, BoxHandle):
        yield Started(
            await box.start(
                order.command, cwd=order.cwd, env=order.env, timeout=order.timeout_sec, user=order.user, pty=order.pty,
                rows=order.rows, cols=order.cols, name=order.name, follow=order.follow,
            )
        )  # fmt: skip
        return
    async with box.operation("exec", command_details(order)) as operation:
        instance = await box.begin()
        try:
            for line in await box.step():
                note(line)
            begun = Started(await instance.start(order))
            yield begun
            operation.result = begun.result
        finally:
            box.end()


@asynccontextmanager
async def joined(box: "Box", job_id: str) -> AsyncIterator[Attached]:
    """Attach to a running job. In a box that this process keeps, all that is typed is one receipt."""
    from hutch.keeper.access.handles import BoxHandle

    if not isinstance(box, BoxHandle):
        yield await box.job(job_id)
        return
    instance = await box.begin()
    try:
        async with box.operation("job.follow", {"job": job_id, "input": True}):
            yield await instance.job(job_id)
    finally:
        box.end()


class McpServers(Protocol):
    """The MCP servers of a running `hutch serve`, or those that this process hosts while the command runs."""

    async def all(self) -> "tuple[McpServerInfo, ...]": ...

    async def info(self, name: str) -> "McpServerInfo": ...

    async def add(
        self, name: str, server: "McpServer", *, trusted: bool = True, replace: bool = False
    ) -> "McpServerInfo": ...

    async def remove(self, name: str) -> None: ...

    async def start(self, name: str) -> "McpServerInfo": ...

    async def stop(self, name: str) -> "McpServerInfo": ...

    async def restart(self, name: str) -> "McpServerInfo": ...

    async def logs(self, name: str) -> tuple[str, ...]: ...

    async def tools(self, name: str) -> "tuple[McpTool, ...]": ...

    async def call(self, name: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]: ...


@asynccontextmanager
async def open_mcp_servers(arguments: argparse.Namespace) -> AsyncIterator[McpServers]:
    """Open the MCP servers of the server that keeps the boxes, or host them in this process."""
    async with open_hutch(arguments) as hutch:
        remote = getattr(hutch, "mcp_servers", None)
        if remote is not None:
            yield remote
            return
        try:
            from hutch.mcp.hosting.hosted import Hosted
        except ImportError as error:
            raise Unavailable(
                f"the parts for MCP are not installed: {error}", retryable=False, remedy="pip install 'hutch[mcp]'"
            ) from error
        from hutch.keeper.embedded import Hutch
        from hutch.mcp.hosting.registry import directory

        assert isinstance(hutch, Hutch), "without a server this process keeps its boxes itself"
        config = load_config(arguments)
        hosted = Hosted(
            hutch, directory=directory(config.state_dir), settings=config.mcp, origin=config.origin("mcp")
        )  # fmt: skip
        try:
            yield hosted
        finally:
            await hosted.close()


# --- the configuration of a keeper in this process ------------------------------------------------------------------


def not_linux() -> Unavailable:
    return Unavailable(
        f"the native engine is for Linux, and this is {sys.platform}",
        retryable=False,
        remedy="use Linux (a virtual machine or WSL 2 will do), or a provider that runs elsewhere",
    )


def _check_platform(arguments: argparse.Namespace, config: Config) -> None:
    if sys.platform != "linux" and (getattr(arguments, "provider", None) or config.provider) == "native":
        raise not_linux()


def _session(arguments: argparse.Namespace) -> str:
    return getattr(arguments, "session", None) or session_name()


def _with_grace(config: Config, grace: float | None) -> Config:
    """Set how long boxes live without use, which only boxes with stored records can."""
    if config.store == "memory":
        raise Invalid(
            "the records of boxes are kept in memory, so no box outlives its process",
            remedy=f"change the setting `store` ({config.origin('store')}), or use `hutch run`",
        )
    if grace is not None and not 0 < grace <= LONGEST_GRACE_SECONDS:
        raise Invalid(
            f"a box cannot be kept for {units.format_seconds(grace)} without use",
            remedy="above 0 and up to 24h (--keep)",
        )
    if grace is None:
        grace = GRACE_SECONDS if config.origin("orphan_grace_sec") == "default" else config.orphan_grace_sec
    return config.but(orphan_grace_sec=grace)


async def _with_image(arguments: argparse.Namespace, config: Config) -> Config:
    """Pull the registry image that the native engine's new box uses, so that people see the progress."""
    if not config.enabled:
        return config
    profile = config.resolve_profile(arguments.profile)
    reference = (profile.locks("image") and profile.image) or arguments.image or config.image or profile.image or ""
    if not reference.startswith("oci:") or (arguments.provider or profile.provider or config.provider) != "native":
        return config
    from hutch.cli.commands.image.pull import ensure_image

    return await ensure_image(arguments, config, reference)
