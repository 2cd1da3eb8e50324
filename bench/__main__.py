"""The command line of the bench: choose, measure, show, keep."""

import argparse
import asyncio
import json
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from bench import publish, report
from bench.measures import MEASURES
from bench.numbers import Number
from bench.pace import Pace
from bench.peers import Peers, all_peers, no_peers
from bench.setting import Setting, setting


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    if unknown := [name for name in asked.names if name not in MEASURES]:
        _parser().error(f"no bench {unknown[0]!r}; there are {', '.join(MEASURES)}")
    if asked.publish and (asked.names or asked.brief or asked.no_peers):
        _parser().error("--publish takes a whole run: no names, no --brief, no --no-peers")
    signal.signal(signal.SIGTERM, _leave)
    started = report.machine()
    with no_peers() if asked.no_peers else all_peers() as peers, setting(peers, brief=asked.brief) as chosen:
        _say_missing(peers)
        pace = Pace()
        numbers, broken = asyncio.run(_measure(chosen, asked.names or list(MEASURES), pace))
        result = report.result(numbers, peers, started, pace, brief=asked.brief, broken=broken)
        print(report.steadiness(pace.plain()))
        print(report.verdict(numbers))
        if asked.json:
            Path(asked.json).write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    if broken:
        print(f"benches that broke: {', '.join(broken)}", file=sys.stderr)
        return 1
    if asked.publish:
        publish.publish(result)
    return 0


async def _measure(chosen: Setting, names: Sequence[str], pace: Pace) -> tuple[list[Number], dict[str, str]]:
    numbers: list[Number] = []
    broken: dict[str, str] = {}
    for name in names:
        pace.take()
        try:
            found = await MEASURES[name](chosen)
        except Exception as error:  # the boundary of one bench: it is reported, and the others still run
            traceback.print_exc()
            broken[name] = f"{type(error).__name__}: {error}"
            continue
        for number in found:
            print(report.lines(number), flush=True)
            numbers.append(number)
    pace.take()
    return numbers, broken


def _say_missing(peers: Peers) -> None:
    for name, reason in peers.missing.items():
        print(f"not measured: {name}: {reason}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(MEASURES)} (default: all)")
    parser.add_argument("--no-peers", action="store_true", help="measure Hutch alone")
    parser.add_argument("--brief", action="store_true", help="few samples: shows that it works, not how fast")
    parser.add_argument("--json", metavar="FILE", help="also write the result there")
    parser.add_argument("--publish", action="store_true", help="write results, document and picture into the tree")
    return parser


def _leave(number: int, frame: FrameType | None) -> None:
    """A terminated bench still ends the daemons that it started."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
