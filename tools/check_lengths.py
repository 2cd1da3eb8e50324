"""No source file holds more than 500 lines: past that a second idea has moved in."""

import sys
from pathlib import Path

LIMIT = 500


def main() -> int:
    source = Path(__file__).parent.parent / "src"
    lengths = {path: len(path.read_text().splitlines()) for path in sorted(source.rglob("*.py"))}
    too_long = {path: length for path, length in lengths.items() if length > LIMIT}
    for path, length in too_long.items():
        print(f"{path.relative_to(source.parent)}: {length} lines, over {LIMIT}: split it by idea")
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
