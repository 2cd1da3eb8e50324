"""The promises of docs/threat-model.md and docs/guides/security.md name tests, and those tests exist."""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
THREATS, GUIDE = "docs/threat-model.md", "docs/guides/security.md"
NAMED = re.compile(r"(?P<path>tests/[\w/]+(?:\.py)?)?(?:::(?P<name>\w+))?")
UNPROVEN_SECTIONS = ("## Checklist",)
"""Advice, not promises."""


def named(text: str) -> Iterator[tuple[str, str]]:
    """Path and name of each test that is named; a name alone belongs to the path before it. The name may be empty."""
    path = ""
    for found in NAMED.finditer(text):
        path = found["path"] or path
        if found["path"] or found["name"]:
            yield path, found["name"] or ""


@lru_cache
def defined(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def promises(document: str) -> Iterator[str]:
    """The rows of the tables and the points of the lists, each as one line; without headers and without advice."""
    block: list[str] = []
    in_advice = False
    for line in (ROOT / document).read_text().splitlines():
        if line.startswith("## "):
            in_advice = line in UNPROVEN_SECTIONS
        continued = bool(block) and line.startswith("  ") and not line.lstrip().startswith("- ")
        if continued:
            block.append(line.strip())
            continue
        if block:
            yield " ".join(block)
        block = [line.strip()] if not in_advice and line.lstrip().startswith(("- ", "| ")) else []
    if block:
        yield " ".join(block)


def rows(document: str) -> list[str]:
    """Without the heads of tables, each of which stands above a line of dashes."""
    text = (ROOT / document).read_text().splitlines()
    heads = {above.strip() for above, below in pairwise(text) if below.startswith("|---")}
    return [line for line in promises(document) if line not in heads]


@pytest.mark.parametrize("document", [THREATS, GUIDE, "SECURITY.md"])
def test_every_test_that_is_named_exists(document: str) -> None:
    found = list(named((ROOT / document).read_text()))
    assert found, "it names none"
    for path, name in found:
        assert (ROOT / path).exists(), f"{document} names {path}"
        assert not name or name in defined(path), f"{document} names {path}::{name}"


def test_every_threat_has_its_defence_and_its_test() -> None:
    """The table "What is protected, and by what": the last column names at least one."""
    text = (ROOT / THREATS).read_text()
    section = text.split("## What is protected, and by what\n")[1].split("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("| ")]
    for line in table[1:]:
        threat, wall, _, tests = (cell.strip() for cell in line.strip()[1:-1].split("|"))
        assert threat and wall and list(named(tests)), line


def test_every_promise_to_operators_has_its_test() -> None:
    for line in rows(GUIDE):
        assert list(named(line)), line
