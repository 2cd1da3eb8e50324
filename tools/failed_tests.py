"""Print the tests that failed in the last pytest run with a given cache directory, one id a line.

Ends with 1 if there is nothing that could be run again: a file that could not be collected, or a run that
died before it wrote down what failed.
"""

import json
import sys
from pathlib import Path


def main(cache_dir: str) -> int:
    record = Path(cache_dir, "v", "cache", "lastfailed")
    if not record.exists():
        print(f"{record} was not written: pytest died before its end", file=sys.stderr)
        return 1
    failed: list[str] = list(json.loads(record.read_text()))
    uncollected = [node for node in failed if "::" not in node]
    for node in uncollected:
        print(f"{node} could not be collected", file=sys.stderr)
    for node in failed:
        print(node)
    return 1 if uncollected else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
