"""Writes a whole run into the tree: bench/results.json, docs/benchmarks.md, docs/bench.svg."""

import json
from pathlib import Path
from typing import Any

from bench.measures import MEASURES
from bench.picture import picture
from bench.report import VERDICTS, quantity, steadiness

TREE = Path(__file__).parent.parent

DOCUMENT = """# Benchmarks

![Hutch beside other engines](bench.svg)

Every number here comes from one run of one command, with all engines measured in turns on the same machine:

```
make bench                          # everything; installs the peers on Debian and Ubuntu, as root
make bench ARGS="create exec"       # only these
make bench ARGS="--no-peers"        # Hutch alone, any user
make bench ARGS="--json out.json"   # keep the numbers
make bench ARGS="--publish"         # everything, and write this page, the picture and bench/results.json anew
make bench ARGS=ablation            # what each optimisation of box creation saves: Hutch with it and without it
```

Benches: {names}.

{machine}

## Goals

A goal is a ratio within this one run, or memory. Machines differ and are noisy, so an absolute time has no verdict.

| what | goal | measured | verdict | command |
|---|---|---|---|---|
{goals}

## Numbers

| what | Hutch p50 | p95 | n | beside it, p50 (times slower than Hutch) |
|---|---|---|---|---|
{rows}

Not measured: {missing}.

## How it is measured

- **In turns.** Most benches have ten rounds, and in every round each engine has its share of the samples, so that noise
  of the machine hits all of them. One run of each comes first and does not count.
- **Like beside like.** Hutch's API beside the engines' HTTP API (a kept connection on a Unix socket, no client
  library); `hutch run` beside `docker run`. Network is off everywhere; containers have the memory, CPU and process
  limits of Hutch's default profile.
- **Directories.** Records are in SQLite on a disk; the run directory (sockets) is in memory, as `/run` is wherever an
  init system made it.
- **Create** counts from the call to the end of a first `true`; removal is not counted. For containers: create, start,
  exec (create, read to the end, inspect). **Create in process** and **one create** end when the box has answered.
- **fork+exec** is `subprocess.Popen(...).wait()` of the same program without any box: the floor for `exec`.
- **python3 -c pass** is a new interpreter in an empty environment: the floor for `hutch run`.
- **plain loopback copy**: two Python processes, one TCP connection, SHA-256 on the receiving side: the floor for files.
- **bwrap** sets no limits and keeps no session: one command, one sandbox. **runsc** (gVisor) runs as a runtime of the
  same Docker daemon; it isolates more.
- **Over HTTP**: `hutch serve` in a process of its own with receipts on, and Hutch's own client on TCP with a key. Many
  clients means sessions of one client process, each with a box; those with a pause ask four times a second.
- **Under abuse**: a second owner's command each 50 ms while another key leaves answers unread, trickles bodies, opens
  connections by the hundred and so on (`bench/abuse.py`), one kind after the other, each after the same time of quiet.
- **Beside idle boxes**: the same keeper with 0, 500, 1,000 and 2,000 boxes that have each run one command. The empty
  keeper is measured before and after; a second keeper that stays empty is measured in turns with the crowded one.
- **One run.** Whatever it shows is published: no bench is repeated and no run is picked. A loop that is timed between
  the benches shows how steady the machine was; on a shared one, neighbours can double every time.
- **p95**: 95 of 100 samples were at least this good.
- **Idle memory** is the fall of MemAvailable, kernel memory included, divided by the number of boxes, after one command
  in each.
- Docker's daemon is the bench's own, in a temporary directory, without a bridge and without a firewall rule; it is
  ended and removed afterwards. Images are a minimal Debian made by debootstrap, kept in the user's cache directory.
"""


def publish(result: dict[str, Any]) -> None:
    (TREE / "bench/results.json").write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    (TREE / "docs/benchmarks.md").write_text(document(result))
    (TREE / "docs/bench.svg").write_text(picture(result))


def document(result: dict[str, Any]) -> str:
    machine, numbers = result["machine"], result["numbers"]
    versions = ", ".join(f"{name} {version}" for name, version in result["peer_versions"].items())
    about = (
        f"{machine['date']}, commit {machine['commit']}, {machine['processor']}, {machine['cores']} cores, "
        f"Linux {machine['kernel']}, Python {machine['python']}, as {machine['user']}; load before and after: "
        f"{machine['load_before']} and {machine['load_after']}; {steadiness(machine['loop_ms'])}. Peers: {versions}."
    )
    missing = "; ".join(f"{name} ({reason})" for name, reason in result["not_measured"].items())
    return DOCUMENT.format(
        names=", ".join(f"`{name}`" for name in MEASURES),
        machine=about,
        goals="\n".join(line for each in numbers for line in _goal_rows(each)),
        rows="\n".join(_row(each) for each in numbers),
        missing=missing or "nothing",
    )


def _goal_rows(number: dict[str, Any]) -> list[str]:
    command = f"`make bench ARGS={number['bench']}`"
    return [
        f"| {number['what']} | {each['goal']} | {each['measured'] or '–'} | {VERDICTS[each['met']]} | {command} |"
        for each in number["goals"]
    ]


def _row(number: dict[str, Any]) -> str:
    unit = number["unit"]
    peers = ", ".join(
        f"{name} {quantity(each['p50'], unit)} ({each['times']:.1f}×)" for name, each in number["peers"].items()
    )
    p50, p95 = quantity(number["p50"], unit), quantity(number["p95"], unit)
    return f"| {number['what']} | **{p50}** | {p95} | {number['n']} | {peers or '–'} |"
