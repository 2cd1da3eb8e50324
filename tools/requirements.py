"""Fill in which tests prove each requirement and lesson of docs/requirements.md.

A test names what it proves in a docstring: `(B14)`, `(P6, S3)`, `(lesson 10)`. The numbers and sentences of the page
are written by hand; its last column is written by this program. `--check` writes nothing and fails if the page is out
of date, or if any source file names a number that the page does not have.
"""

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "requirements.md"
SHOWN = 3  # Tests that are listed for one number; the rest is counted.
NOT_YET = "not yet"

_REQUIREMENT = re.compile(r"\b([BPS]\d{1,2})\b")
_LESSONS = re.compile(r"\b[Ll]essons? (\d+(?:(?:, | and |, and )\d+)*)")
_ROW = re.compile(r"^\| (?P<number>[BPS]\d+|\d+) \| (?P<sentence>[^|]+?) \|[^|]*\|$")


def numbers(text: str) -> set[str]:
    """The requirements (`B14`) and lessons (`10`) that a text names."""
    lessons = {number for found in _LESSONS.findall(text) for number in re.findall(r"\d+", found)}
    return set(_REQUIREMENT.findall(text)) | lessons


def docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """Every docstring of a test module with the pytest id of what it belongs to, the module's own included."""
    tree = ast.parse(path.read_text())
    name = path.relative_to(ROOT).as_posix()
    yield name, ast.get_docstring(tree) or ""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield f"{name}::{node.name}", ast.get_docstring(node) or ""


def proofs() -> dict[str, list[str]]:
    """The tests that name each number. A module counts only where none of its tests names the number itself."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        of_module, *of_tests = docstrings(path)
        for place, text in of_tests:
            for number in numbers(text):
                found[number].append(place)
        for number in numbers(of_module[1]):
            if not any(place.startswith(of_module[0]) for place in found[number]):
                found[number].append(of_module[0])
    return found


def cell(tests: list[str]) -> str:
    """The last column of a row."""
    if not tests:
        return NOT_YET
    shown = ", ".join(f"`{test.removeprefix('tests/')}`" for test in tests[:SHOWN])
    return shown + (f" and {len(tests) - SHOWN} more" if len(tests) > SHOWN else "")


def filled(page: str, found: dict[str, list[str]]) -> str:
    lines = []
    for line in page.splitlines():
        row = _ROW.match(line)
        lines.append(f"| {row['number']} | {row['sentence']} | {cell(found[row['number']])} |" if row else line)
    return "\n".join(lines) + "\n"


def unknown(page: str) -> list[str]:
    """References in source files to numbers that the page does not have."""
    known = {row["number"] for line in page.splitlines() if (row := _ROW.match(line))}
    problems = []
    for folder in ("src", "tests", "bench", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            comments = re.findall(r'"""(?s:.*?)"""|#.*', path.read_text())
            named = {number for text in comments for number in numbers(text)}
            problems += [f"{path.relative_to(ROOT)} names {number}" for number in sorted(named - known)]
    return problems


def main() -> int:
    page = PAGE.read_text()
    wanted = filled(page, proofs())
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(wanted)
        return 0
    problems = [f"{problem}, which docs/requirements.md does not have" for problem in unknown(page)]
    rows = Counter(row["number"] for line in page.splitlines() if (row := _ROW.match(line)))
    problems += [f"docs/requirements.md has {number} {times} times" for number, times in rows.items() if times > 1]
    if wanted != page:
        problems.append("docs/requirements.md is out of date: run .venv/bin/python tools/requirements.py")
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
