"""Fill in what works of E2B's protocol in docs/guides/e2b.md, from the tests that prove it.

Each test of `tests/e2e/test_e2b_*.py` says in its docstring what it proves. `--check` writes nothing and fails if the
guide is out of date.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "guides" / "e2b.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->"
_NUMBERS = re.compile(r"^\([^)]*\) ")


def rows() -> Iterator[str]:
    for path in sorted((ROOT / "tests" / "e2e").glob("test_e2b_*.py")):
        area = path.stem.removeprefix("test_e2b_")
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                text = " ".join((ast.get_docstring(node) or "").split())
                yield f"| {area} | {_NUMBERS.sub('', text)} | `{node.name}` |"


def filled(guide: str) -> str:
    """The guide with the table as the tests have it."""
    before, rest = guide.split(BEGIN)
    _, after = rest.split(END)
    table = "\n".join(("| area | what | test |", "|---|---|---|", *rows()))
    return f"{before}{BEGIN}{table}\n{END}{after}"


def main() -> int:
    guide = GUIDE.read_text()
    if filled(guide) == guide:
        return 0
    if "--check" in sys.argv:
        print("docs/guides/e2b.md is out of date: run .venv/bin/python tools/e2b_table.py")
        return 1
    GUIDE.write_text(filled(guide))
    return 0


if __name__ == "__main__":
    sys.exit(main())
