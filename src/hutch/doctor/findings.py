"""A finding: one requirement, how it stands here, what follows from that, and the exact fix."""

from collections.abc import Iterable
from enum import StrEnum

from hutch.model.record import Record


class Standing(StrEnum):
    OK = "ok"
    WARN = "warn"
    """Boxes work, but something is weaker or missing."""
    FAIL = "fail"
    """The native engine cannot be used."""


class Finding(Record, frozen=True, kw_only=True):
    name: str
    state: Standing
    found: str
    consequence: str = ""
    fix: str = ""


def ok(name: str, found: str) -> Finding:
    return Finding(name=name, state=Standing.OK, found=found)


def warn(name: str, found: str, consequence: str, fix: str) -> Finding:
    return Finding(name=name, state=Standing.WARN, found=found, consequence=consequence, fix=fix)


def fail(name: str, found: str, consequence: str, fix: str) -> Finding:
    return Finding(name=name, state=Standing.FAIL, found=found, consequence=consequence, fix=fix)


def usable(findings: Iterable[Finding]) -> bool:
    return all(finding.state is not Standing.FAIL for finding in findings)
