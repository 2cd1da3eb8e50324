"""Show the engines that can make boxes here, what each can do, and by what it holds limits."""

import argparse
import asyncio

from hutch.cli.embedded import configuration
from hutch.cli.keeper_choice import visit
from hutch.cli.output import emit_json
from hutch.config import Config
from hutch.errors import HutchError
from hutch.model.capabilities import Capabilities
from hutch.providers import registry


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--retire", metavar="NAME", help="destroy every box of this one, before it is uninstalled")
    parser.add_argument("--names", action="store_true", help="only their names, one on each line")


def run(arguments: argparse.Namespace) -> int:
    if arguments.retire:
        return asyncio.run(_retire(arguments))
    config = configuration(arguments)
    if arguments.names:
        print("\n".join(sorted(registry.names())))
        return 0
    found = asyncio.run(_probe(config))
    if arguments.json:
        emit_json({"default": config.provider, "providers": [each.to_plain() for each in found]})
    else:
        for each in found:
            _show(each, default=each.provider == config.provider)
    return 0


async def _retire(arguments: argparse.Namespace) -> int:
    """An engine that goes must not leave boxes behind that nobody can end any more (P1)."""
    async with visit(arguments) as hutch:
        boxes = [box for box in await hutch.boxes() if box.provider == arguments.retire]
        for box in boxes:
            await hutch.destroy(box.id, force=True)
            if not arguments.json:
                print(box.id)
    if arguments.json:
        emit_json({"provider": arguments.retire, "destroyed": [box.id for box in boxes]})
    return 0


async def _probe(config: Config) -> list[Capabilities]:
    from hutch.keeper.engines import Engines

    engines = Engines(config)
    found: list[Capabilities] = []
    try:
        for name in sorted(registry.names()):
            try:
                found.append(await engines.capabilities(name))
            except HutchError as error:
                found.append(Capabilities(provider=name, usable=False, reason=error.message, remedy=error.remedy))
    finally:
        await engines.close()
    return found


def _show(found: Capabilities, *, default: bool) -> None:
    print(f"{found.provider}{' (default)' if default else ''}: {'usable' if found.usable else 'not usable'}")
    if not found.usable:
        print(f"  why:       {found.reason}")
        print(f"  fix:       {found.remedy}")
        return
    print(f"  isolation: {found.isolation}; network {', '.join(found.networks)}; images {', '.join(found.images)}")
    print(f"  limits:    {', '.join(f'{limit} by {grade}' for limit, grade in found.grades.to_plain().items())}")
    weaker = {"in a persistent box": found.disk_if_persistent, "under a writable root": found.disk_if_writable_root}
    for where, grade in weaker.items():
        if grade is not None:
            print(f"             disk_mb by {grade} {where}")
    able = ("guest", "durable_jobs", "pty", "watch", "uid_range", "writable_root", "persistent", "mounts", "ports")
    print(f"  can:       {', '.join(name for name in able if getattr(found, name))}; pause by {found.pause}")
    for missing in found.missing:
        print(f"  cannot:    {missing.what}: {missing.reason}" + (f" ({missing.remedy})" if missing.remedy else ""))
    for name, value in found.facts.items():
        print(f"  {name + ':':<10} {value}")
