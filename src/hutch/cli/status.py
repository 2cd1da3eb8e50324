"""Whether boxes can be made: here, or at the server that would be asked. The exit code is 0 only if they can."""

import argparse
import asyncio

from hutch.cli.embedded import configuration
from hutch.cli.keeper_choice import client_of, session_name
from hutch.cli.output import emit_json, printable
from hutch.client.disabled import OffHutch
from hutch.model.durations import shown
from hutch.model.status import Status

NOT_AVAILABLE = 1


def add(parser: argparse.ArgumentParser) -> None:
    """It has no options of its own."""


def run(arguments: argparse.Namespace) -> int:
    server, status = asyncio.run(_status(arguments))
    if arguments.json:
        emit_json({**status.to_plain(), "server": server or None})
    else:
        print("\n".join(_lines(server, status)))
    return 0 if status.available else NOT_AVAILABLE


async def _status(arguments: argparse.Namespace) -> tuple[str, Status]:
    """Where was asked, and the answer."""
    config = configuration(arguments)
    if not config.enabled:
        return "", await OffHutch(config.origin("enabled")).status()
    remote = client_of(arguments, config, session_name())
    if remote is not None:
        async with remote:
            return remote.url, await remote.status()
    from hutch.keeper.embedded import Hutch, durable

    async with Hutch(keeper=durable(config, visiting=True)) as hutch:
        return "", await hutch.status()


def _lines(server: str, status: Status) -> list[str]:
    facts = {
        "state": str(status.state),
        "reason": printable(status.reason),
        "fix": printable(status.remedy),
        "server": server,
        "engine": status.provider,
        "version": status.version,
        "up": shown(status.uptime_sec) if server and status.uptime_sec else "",
        "boxes": ", ".join(f"{count} {state}" for state, count in sorted(status.boxes.items())),
    }
    return [f"{name + ':':<9} {text}" for name, text in facts.items() if text]
