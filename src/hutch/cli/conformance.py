"""Check that a provider keeps its contract: every behaviour, as it happens. Exit code 1: something does not hold."""

import argparse
import asyncio
import sys

from hutch.cli.embedded import configuration
from hutch.cli.output import emit_json, table
from hutch.config import Config, directories
from hutch.conformance import kit
from hutch.conformance.kit import Finding, Outcome, Report
from hutch.conformance.registry import checks
from hutch.providers import registry
from hutch.providers.base import Provider

FAILED = 1
EPILOG = "example: hutch conformance native --check jobs --check exec.timeout"

_SIGNS = {Outcome.PASSED: "ok", Outcome.REFUSED: "refused", Outcome.FAILED: "FAILED"}
_COLOURS = {Outcome.PASSED: "32", Outcome.REFUSED: "33", Outcome.FAILED: "31"}


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("provider", nargs="?", help="its name (`hutch providers`); the configured one by default")
    parser.add_argument("--check", action="append", default=[], metavar="NAME", help="only this check, or this theme")
    parser.add_argument("--image", default="", metavar="REF", help="the image of its boxes (host, where there is that)")
    parser.add_argument("--list", action="store_true", help="show the checks, and end")


def run(arguments: argparse.Namespace) -> int:
    if arguments.list:
        return _show_checks(as_json=arguments.json)
    config = configuration(arguments)
    name = arguments.provider or config.provider
    report = asyncio.run(
        kit.run(
            lambda: _provider(name, config),
            tuple(arguments.check),
            image=arguments.image,
            progress=None if arguments.json else _show,
        )
    )
    if arguments.json:
        emit_json({"ok": report.ok, **report.to_plain()})
    else:
        _sum_up(report)
    return 0 if report.ok else FAILED


def _provider(name: str, config: Config) -> Provider:
    provider = registry.find(name)()
    for directory in (config.state_dir, config.run_dir):
        directories.make(directory)
    provider.settle(str(config.state_dir), str(config.run_dir))
    provider.configure(config.for_provider(name))
    return provider


def _show(finding: Finding) -> None:
    print(f"{_sign(finding.outcome)} {finding.name:<34} {finding.seconds:6.2f} s", flush=True)
    if finding.outcome is Outcome.FAILED:
        print(f"        should: {finding.sentence}\n        but:    {finding.message}", flush=True)


def _sign(outcome: Outcome) -> str:
    sign = _SIGNS[outcome].ljust(7)
    return f"\x1b[{_COLOURS[outcome]}m{sign}\x1b[0m" if sys.stdout.isatty() else sign


def _sum_up(report: Report) -> None:
    passed, refused, failed = (report.count(outcome) for outcome in Outcome)
    seconds = sum(finding.seconds for finding in report.findings)
    print(
        f"\nprovider {report.provider}: {passed} passed, {refused} cleanly refused, {failed} failed in {seconds:.1f} s"
    )


def _show_checks(*, as_json: bool) -> int:
    found = checks()
    if as_json:
        emit_json({"checks": [{"name": each.name, "needs": each.needs, "sentence": each.sentence} for each in found]})
    else:
        table(("check", "needs", "behaviour"), [(each.name, each.needs, each.sentence) for each in found])
    return 0
