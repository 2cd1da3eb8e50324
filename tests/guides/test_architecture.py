"""docs/architecture.md names files, folders and functions, and all of them exist."""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs/architecture.md"
NAMED = re.compile(r"`(?P<path>[\w/.-]+?(?:\.py|/))(?::(?P<function>[\w.]+))?`")
FLOWS = 5


def named(line: str) -> Iterator[tuple[str, str]]:
    for found in NAMED.finditer(line):
        yield found["path"], found["function"] or ""


def located(path: str, folder: str) -> Path | None:
    """The file that a path means: from src/hutch, from the root, or in the folder of its table's row."""
    places = (ROOT / "src/hutch" / path, ROOT / path, ROOT / "src/hutch" / folder / path)
    return next((place for place in places if place.exists()), None)


@lru_cache
def functions(path: Path) -> frozenset[str]:
    """Functions of a module, and methods as Class.method."""
    defined = ast.FunctionDef | ast.AsyncFunctionDef
    body = ast.parse(path.read_text()).body
    names = {node.name for node in body if isinstance(node, defined)}
    for each in body:
        if isinstance(each, ast.ClassDef):
            names |= {f"{each.name}.{node.name}" for node in each.body if isinstance(node, defined)}
    return frozenset(names)


def test_every_path_and_function_that_is_named_exists() -> None:
    wrong = []
    for line in DOCUMENT.read_text().splitlines():
        first = list(named(line.split("|")[1])) if line.startswith("| ") else []
        folder = first[0][0] if first and first[0][0].endswith("/") else ""
        for path, function in named(line):
            place = located(path, folder)
            if place is None or (function and function not in functions(place)):
                wrong.append(f"{path}:{function}")
    assert not wrong


def test_each_flow_is_written_as_hops() -> None:
    section = DOCUMENT.read_text().split("## 2. Five flows\n")[1].split("\n## ")[0]
    flows = section.split("\n### ")[1:]
    assert len(flows) == FLOWS
    for flow in flows:
        hops = [line for line in flow.splitlines() if re.match(r"\d+\. ", line)]
        assert 5 < len(hops) <= 15, flow
        assert all(re.match(r"\d+\. `[\w/]+\.py:[\w.]+`", hop) for hop in hops), flow
