"""`hutch mcp`: the tools for an MCP client on standard input and output."""

import argparse
import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hutch.api import Hutch
from hutch.cli.connect import load_config, open_hutch
from hutch.cli.options import add_box_options, spec_of
from hutch.cli.parsers import CliCommand
from hutch.config import Config
from hutch.errors import HutchError, Invalid, Unavailable
from hutch.logs import log
from hutch.policy.permissions import EVERYBODY, AgentPermissions, Others

if TYPE_CHECKING:
    from hutch.mcp.serving.client_info import Client

ASK = "ask"
"""The name for rules that ask before everything that changes something."""


class Mcp(CliCommand):
    """Serve the tools to an MCP client on standard input and output: `hutch mcp` in its configuration is enough."""

    epilog = """\
A client finds its box again by its scope: its name and the directory it was started in, or --scope. A second live
client of the same scope gets a box of its own. The directory itself is not shown in the box unless --workspace says so.
When the client is gone its box lives on for 15 minutes (orphan_grace_sec).

  claude mcp add hutch -- hutch mcp
"""
    json_help = "an error that keeps it from serving is one JSON object; then standard output is MCP's alone"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--scope", metavar="NAME", help="find the box by this name, whatever client and directory")
        parser.add_argument("--tools", metavar="A,B", help="only these tools")
        parser.add_argument(
            "--permissions", metavar="NAME",
            help="the rules of [permissions.NAME] in hutch.toml (default: the client's name), or `ask`",
        )  # fmt: skip
        parser.add_argument(
            "--box", action="append", default=[], metavar="NAME", help="a box that it may use besides those it makes"
        )
        parser.add_argument(
            "--allow", metavar="A,B",
            help=f"what it may do to boxes of other sessions: {', '.join(Others)} (default: nothing)",
        )  # fmt: skip
        add_box_options(parser)

    async def run_async(self, arguments: argparse.Namespace) -> int:
        config = load_config(arguments)
        permissions = _permissions(arguments, config)
        await _serve(arguments, config, spec_of(arguments), permissions)
        return 0


async def _serve(
    arguments: argparse.Namespace, config: Config, spec: dict[str, Any], permissions: Mapping[str, AgentPermissions]
) -> None:
    _end_on_signals()
    async with AsyncExitStack() as stack:
        opening = asyncio.create_task(_open(stack, arguments))
        await asyncio.to_thread(_import_sdk)  # takes about a second, in which the engine can start
        from hutch.mcp.serving.client_session import ClientSession
        from hutch.mcp.serving.render import exposure_of
        from hutch.mcp.serving.scopes import MachineSlots, scope_name, scope_of
        from hutch.mcp.serving.stdio import serve

        slots = MachineSlots(config.run_dir / "mcp")
        exposure = exposure_of(spec, config.resolve_profile(spec.get("profile")))

        async def open_session(client: "Client") -> ClientSession:
            scope = scope_name(arguments.scope) if arguments.scope else scope_of(client.name, os.getcwd())
            hutch = await asyncio.shield(opening)
            return ClientSession(
                hutch, client, slots, scope, spec=spec, permissions=permissions, exposure=exposure, boxes=arguments.box
            )

        await serve(open_session)


async def _open(stack: AsyncExitStack, arguments: argparse.Namespace) -> Hutch:
    try:
        return await stack.enter_async_context(open_hutch(arguments))
    except HutchError as error:  # the client gets the error with its first call; people find it in the client's log
        log("mcp").error("no boxes", why=error.message, remedy=error.remedy)
        raise


def _import_sdk() -> None:
    try:
        import_module("hutch.mcp.serving.stdio")
    except ImportError as error:
        raise Unavailable(
            f"the parts for MCP are not installed: {error}", retryable=False, remedy="pip install 'hutch[mcp]'"
        ) from error


def _end_on_signals() -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)


def _permissions(arguments: argparse.Namespace, config: Config) -> dict[str, AgentPermissions]:
    """Collect the rules of each agent; an agent is known by its client's name."""
    from hutch.mcp.serving import permissions

    table = dict(config.permissions)
    if arguments.permissions == ASK:
        table = permissions.ask_before_changes()
    elif arguments.permissions:
        if arguments.permissions not in table:
            raise Invalid(
                f"there is no [permissions.{arguments.permissions}]", op="mcp",
                remedy=f"one of {', '.join(sorted(table)) or 'none in hutch.toml'}, or ask",
            )  # fmt: skip
        table = {EVERYBODY: table[arguments.permissions]}
    if arguments.allow:
        table = permissions.grant_others(arguments.allow.split(","), table)
    return table if arguments.tools is None else permissions.restrict_to(arguments.tools.split(","), table)
