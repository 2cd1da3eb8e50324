"""Check what this machine can do: each requirement, what follows from it, and the exact fix. Exit code 1: unusable."""

import argparse
import asyncio
import sys

from hutch.cli.embedded import configuration
from hutch.cli.output import emit_json, table
from hutch.config import Config
from hutch.doctor import checks, facts, matrix
from hutch.doctor.findings import Finding, Standing, usable

UNUSABLE = 1

_SIGNS = {Standing.OK: "ok  ", Standing.WARN: "warn", Standing.FAIL: "FAIL"}
_COLOURS = {Standing.OK: "32", Standing.WARN: "33", Standing.FAIL: "31"}


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--matrix", action="store_true", help="show what kernels and distributions give, and end")


def run(arguments: argparse.Namespace) -> int:
    if arguments.matrix:
        return _show_matrix(as_json=arguments.json)
    config = configuration(arguments)
    found = checks.findings(facts.gather(config))
    if usable(found) and sys.platform == "linux":
        found += asyncio.run(_canary(config))
    good = usable(found)
    if arguments.json:
        emit_json({"usable": good, "findings": [finding.to_plain() for finding in found]})
    else:
        _show(found, good=good)
    return 0 if good else UNUSABLE


async def _canary(config: Config) -> list[Finding]:
    from hutch.doctor import canary

    return [finding async for finding in canary.findings(config)]


def _show(found: list[Finding], *, good: bool) -> None:
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


def _sign(state: Standing) -> str:
    return f"\x1b[{_COLOURS[state]}m{_SIGNS[state]}\x1b[0m" if sys.stdout.isatty() else _SIGNS[state]


def _show_matrix(*, as_json: bool) -> int:
    if as_json:
        emit_json({"kernels": matrix.KERNELS, "distributions": matrix.DISTRIBUTIONS})
        return 0
    table(("KERNEL", "GIVES", "TO DO"), matrix.KERNELS)
    print()
    table(("DISTRIBUTION", "KERNEL", "BOXES"), matrix.DISTRIBUTIONS)
    return 0
