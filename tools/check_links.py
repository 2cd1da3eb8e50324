"""Check that every link of every document of this repository leads to a file, and to a heading where it names one.

Addresses of other sites are not fetched: a check must not fail because somebody else's server does.
"""

import re
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
FOREIGN = ("http://", "https://", "mailto:")


def documents() -> list[Path]:
    """Return the documents of this repository, which are at its top and below its folders for people."""
    folders = ("docs", "examples", "deploy", "bench")
    return [*ROOT.glob("*.md"), *(path for folder in folders for path in (ROOT / folder).rglob("*.md"))]


@cache
def anchors(document: Path) -> frozenset[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    seen: dict[str, int] = {}
    found: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", document.read_text())):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(f"{anchor}-{seen[anchor]}" if anchor in seen else anchor)
        seen[anchor] = seen.get(anchor, 0) + 1
    return frozenset(found)


def broken(document: Path) -> list[str]:
    """Return what is wrong with the links of one document."""
    wrong: list[str] = []
    text = CODE.sub("", FENCE.sub("", document.read_text()))
    for target in LINK.findall(text):
        if target.startswith(FOREIGN):
            continue
        path, _, anchor = target.partition("#")
        place = (document.parent / path).resolve() if path else document
        if not place.exists():
            wrong.append(f"{target}: there is no such file")
        elif not place.is_relative_to(ROOT):
            wrong.append(f"{target}: it leads out of the repository")
        elif anchor and place.suffix == ".md" and anchor not in anchors(place):
            wrong.append(f"{target}: {place.relative_to(ROOT)} has no such heading")
    return [f"{document.relative_to(ROOT)}: {each}" for each in wrong]


def main() -> int:
    found = [each for document in documents() for each in broken(document)]
    for each in found:
        print(each, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
