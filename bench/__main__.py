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

from bench import ablation, publish, report
from bench.context import Context, open_context
from bench.measures import MEASURES
from bench.numbers import Number
from bench.peers import Peers, all_peers, no_peers
from bench.steadiness import LoopTimer

ABLATION = "ablation"
"""No bench of the published numbers: it needs no peers, and compares Hutch with itself."""


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = _parser().parse_args(arguments)
    if unknown := [name for name in parsed.names if name not in (*MEASURES, ABLATION)]:
        _parser().error(f"no bench {unknown[0]!r}; there are {', '.join(MEASURES)} and {ABLATION}")
    if parsed.publish and (parsed.names or parsed.brief or parsed.no_peers):
        _parser().error("--publish takes a whole run: no names, no --brief, no --no-peers")
    if ABLATION in parsed.names and len(parsed.names) > 1:
        _parser().error(f"{ABLATION} runs alone")
    signal.signal(signal.SIGTERM, _exit_on_signal)
    if ABLATION in parsed.names:
        return _ablation(brief=parsed.brief, written=parsed.json)
    started = report.machine()
    with no_peers() if parsed.no_peers else all_peers() as peers, open_context(peers, brief=parsed.brief) as context:
        _print_missing(peers)
        loop_timer = LoopTimer()
        numbers, broken = asyncio.run(_measure(context, parsed.names or list(MEASURES), loop_timer))
        result = report.result(numbers, peers, started, loop_timer, brief=parsed.brief, broken=broken)
        print(report.steadiness(loop_timer.as_json()))
        print(report.goal_counts([number for _, number in numbers]))
        if parsed.json:
            _write_json(parsed.json, result)
    if broken:
        print(f"benches that broke: {', '.join(broken)}", file=sys.stderr)
        return 1
    if parsed.publish:
        publish.publish(result)
    return 0


async def _measure(
    context: Context, names: Sequence[str], loop_timer: LoopTimer
) -> tuple[list[tuple[str, Number]], dict[str, str]]:
    numbers: list[tuple[str, Number]] = []
    broken: dict[str, str] = {}
    for name in names:
        loop_timer.take()
        try:
            measured = await MEASURES[name](context)
        except Exception as error:  # the boundary of one bench: it is reported, and the others still run
            traceback.print_exc()
            broken[name] = f"{type(error).__name__}: {error}"
            continue
        for number in measured:
            print(report.lines(number), flush=True)
            numbers.append((name, number))
    loop_timer.take()
    return numbers, broken


def _ablation(*, brief: bool, written: str | None) -> int:
    with no_peers() as peers, open_context(peers, brief=brief) as context:
        found = asyncio.run(ablation.measure(context))
    print(ablation.table(found))
    if written:
        _write_json(written, {"machine": report.machine(), "brief": brief, "ablation": ablation.as_json(found)})
    return 0


def _write_json(path: str, value: object) -> None:
    Path(path).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _print_missing(peers: Peers) -> None:
    for name, reason in peers.missing.items():
        print(f"not measured: {name}: {reason}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    named = f"which: {', '.join(MEASURES)} (default: all of these), or {ABLATION} alone"
    parser.add_argument("names", nargs="*", metavar="NAME", help=named)
    parser.add_argument("--no-peers", action="store_true", help="measure Hutch alone")
    parser.add_argument("--brief", action="store_true", help="few samples: shows that it works, not how fast")
    parser.add_argument("--json", metavar="FILE", help="also write the result there")
    parser.add_argument("--publish", action="store_true", help="write results, document and picture into the tree")
    return parser


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    """A terminated bench still ends the daemons that it started."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
