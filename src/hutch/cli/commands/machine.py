"""Commands about this machine and its engines: what works here, and what dead processes left behind.

The doctor and the conformance kit are imported where they are used, so that completion gets the names of the providers
quickly.
"""

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from hutch.cli.connect import load_config, not_linux, open_hutch
from hutch.cli.output import emit_json, table
from hutch.cli.parsers import CliCommand
from hutch.config import Config, directories
from hutch.errors import HutchError
from hutch.model.capabilities import Capabilities
from hutch.providers import registry

if TYPE_CHECKING:
    from hutch.conformance import kit
    from hutch.doctor.findings import Finding
    from hutch.providers.base import Leftover, Provider

UNUSABLE = 1
NOT_CONFORMING = 1
INCOMPLETE = 1
_SIGNS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL", "passed": "ok     ", "refused": "refused", "failed": "FAILED "}
_COLOURS = {"ok": "32", "warn": "33", "fail": "31", "passed": "32", "refused": "33", "failed": "31"}


def _sign(outcome: str) -> str:
    return f"\x1b[{_COLOURS[outcome]}m{_SIGNS[outcome]}\x1b[0m" if sys.stdout.isatty() else _SIGNS[outcome]


class Doctor(CliCommand):
    """Check what this machine can do: each requirement, what follows, and the exact fix. Exit code 1: unusable."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--matrix", action="store_true", help="show what kernels and distributions give, and end")

    def run(self, arguments: argparse.Namespace) -> int:
        if arguments.matrix:
            return _show_matrix(as_json=arguments.json)
        from hutch.doctor import checks, facts
        from hutch.doctor.findings import usable

        config = load_config(arguments)
        found = checks.findings(facts.gather(config))
        if usable(found) and sys.platform == "linux":
            found += asyncio.run(_canary(config))
        good = usable(found)
        if arguments.json:
            emit_json({"usable": good, "findings": [finding.to_plain() for finding in found]})
        else:
            _show_findings(found, good=good)
        return 0 if good else UNUSABLE


async def _canary(config: Config) -> "list[Finding]":
    from hutch.doctor import canary

    return [finding async for finding in canary.findings(config)]


def _show_findings(found: "list[Finding]", *, good: bool) -> None:
    from hutch.doctor.findings import Standing

    width = max(len(finding.name) for finding in found)
    for finding in found:
        print(f"{_sign(finding.state)}  {finding.name.ljust(width)}  {finding.found}")
        if finding.consequence:
            print(f"{' ' * (width + 8)}means: {finding.consequence}")
        if finding.fix:
            print(f"{' ' * (width + 8)}fix:   {finding.fix}")
    print()
    warnings = sum(finding.state is Standing.WARN for finding in found)
    if not good:
        print("The native engine cannot be used here until each FAIL is fixed.")
    elif warnings:
        print(f"Boxes work here; {warnings} thing{'s' * (warnings != 1)} could be better.")
    else:
        print("Boxes work here, with everything.")


def _show_matrix(*, as_json: bool) -> int:
    from hutch.doctor.findings import DISTRIBUTIONS, KERNELS

    if as_json:
        emit_json({"kernels": KERNELS, "distributions": DISTRIBUTIONS})
        return 0
    table(("KERNEL", "GIVES", "TO DO"), KERNELS)
    print()
    table(("DISTRIBUTION", "KERNEL", "BOXES"), DISTRIBUTIONS)
    return 0


class Providers(CliCommand):
    """Show the engines that can make boxes here, what each can do, and by what it holds limits."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--retire", metavar="NAME", help="destroy every box of this one, before it is uninstalled")
        parser.add_argument("--names", action="store_true", help="only their names, one on each line")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        if arguments.retire:
            return await _retire(arguments)
        config = load_config(arguments)
        if arguments.names:
            print("\n".join(sorted(registry.names())))
            return 0
        found = await _probe(config)
        if arguments.json:
            emit_json({"default": config.provider, "providers": [each.to_plain() for each in found]})
        else:
            for each in found:
                _show_provider(each, default=each.provider == config.provider)
        return 0


async def _retire(arguments: argparse.Namespace) -> int:
    """Destroy all boxes of an engine, which nobody could end once the engine is uninstalled (P1)."""
    async with open_hutch(arguments) as hutch:
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


def _show_provider(found: Capabilities, *, default: bool) -> None:
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
    able = ("guest", "durable_jobs", "pty", "watch", "uid_range", "writable_root", "persistent", "layers", "mounts",
            "ports")  # fmt: skip
    print(f"  can:       {', '.join(name for name in able if getattr(found, name))}; pause by {found.pause}")
    for missing in found.missing:
        print(f"  cannot:    {missing.what}: {missing.reason}" + (f" ({missing.remedy})" if missing.remedy else ""))
    for name, value in found.facts.items():
        print(f"  {name + ':':<10} {value}")


class Conformance(CliCommand):
    """Check that a provider keeps its contract, every behaviour as it happens. Exit code 1: something does not hold."""

    epilog = "example: hutch conformance native --check jobs --check exec.timeout"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("provider", nargs="?", help="its name (`hutch providers`); the configured one by default")
        parser.add_argument(
            "--check", action="append", default=[], metavar="NAME", help="only this check, or this theme"
        )
        parser.add_argument(
            "--image", default="", metavar="REF", help="the image of its boxes (host, where there is that)"
        )
        parser.add_argument("--list", action="store_true", help="show the checks, and end")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        from hutch.conformance import kit

        if arguments.list:
            return _show_checks(as_json=arguments.json)
        config = load_config(arguments)
        name = arguments.provider or config.provider
        report = await kit.run(
            lambda: _provider(name, config),
            tuple(arguments.check),
            image=arguments.image,
            progress=None if arguments.json else _show_finding,
        )
        if arguments.json:
            emit_json({"ok": report.ok, **report.to_plain()})
        else:
            _sum_up(report)
        return 0 if report.ok else NOT_CONFORMING


def _provider(name: str, config: Config) -> "Provider":
    provider = registry.find(name)()
    for directory in (config.state_dir, config.run_dir):
        directories.make(directory)
    provider.set_directories(str(config.state_dir), str(config.run_dir))
    provider.configure(config.for_provider(name))
    return provider


def _show_finding(finding: "kit.Finding") -> None:
    print(f"{_sign(finding.outcome)} {finding.name:<34} {finding.seconds:6.2f} s", flush=True)
    if finding.outcome == "failed":
        print(f"        should: {finding.sentence}\n        but:    {finding.message}", flush=True)


def _sum_up(report: "kit.Report") -> None:
    from hutch.conformance.kit import Outcome

    passed, refused, failed = (report.count(outcome) for outcome in Outcome)
    seconds = sum(finding.seconds for finding in report.findings)
    print(
        f"\nprovider {report.provider}: {passed} passed, {refused} cleanly refused, {failed} failed in {seconds:.1f} s"
    )


def _show_checks(*, as_json: bool) -> int:
    from hutch.conformance.registry import checks

    found = checks()
    if as_json:
        emit_json({"checks": [{"name": each.name, "needs": each.needs, "sentence": each.sentence} for each in found]})
    else:
        table(("check", "needs", "behaviour"), [(each.name, each.needs, each.sentence) for each in found])
    return 0


class Prune(CliCommand):
    """Remove what dead processes left behind: boxes whose keeper is gone, never what a live one owns."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")

    async def run_async(self, arguments: argparse.Namespace) -> int:
        from hutch.keeper.takeover.prune import prune

        config = load_config(arguments)
        if sys.platform != "linux" and config.provider == "native":
            raise not_linux()
        found = [leftover async for leftover in prune(config, dry_run=arguments.dry_run)]
        if arguments.json:
            emit_json({"dry_run": arguments.dry_run, "leftovers": [leftover.to_plain() for leftover in found]})
        else:
            _show_leftovers(found, dry_run=arguments.dry_run)
        return INCOMPLETE if any(leftover.problem for leftover in found) else 0


def _show_leftovers(found: "list[Leftover]", *, dry_run: bool) -> None:
    for leftover in found:
        done = f"could not be removed: {leftover.problem}" if leftover.problem else "would go" if dry_run else "removed"
        print(f"{leftover.kind} {leftover.name}: {done}")
    if not found:
        print("nothing was left behind")
