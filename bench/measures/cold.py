"""`hutch run -- true` as a person types it in a fresh shell: a new process, no environment, nothing kept."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench.context import Context
from bench.interleave import Candidate, blocking, interleave
from bench.numbers import Number, Summary, at_most_times, times_faster
from bench.peers.errors import PeerFailed, PeerMissing

PYTHON = "python3 -c pass"


async def cold(context: Context) -> list[Number]:
    hutch = shutil.which("hutch", path=str(Path(sys.executable).parent)) or shutil.which("hutch")
    if hutch is None:
        raise FileNotFoundError("the `hutch` command is not installed beside this Python")
    run = [hutch, "run", "--", "true"]
    start_python = [getattr(sys, "_base_executable", sys.executable), "-c", "pass"]
    candidates = [
        Candidate("hutch", blocking(partial(_run, context, run, RuntimeError)), context.count(60)),
        Candidate(PYTHON, blocking(partial(_run, context, start_python, RuntimeError)), context.count(60)),
    ]
    for name in context.peers.engines:
        try:
            typed = context.peers.command_line(name)
        except PeerMissing as missing:
            context.peers.missing[f"{name} run"] = str(missing)
            continue
        work: Callable[[], None] = partial(_run, context, typed, PeerFailed)
        candidates.append(Candidate(f"{name} run", blocking(work), context.count(20)))
    if argv := context.peers.bwrap:
        candidates.append(Candidate("bwrap", blocking(partial(_run, context, argv, PeerFailed)), context.count(60)))
    samples = await interleave(candidates)
    context.peers.missing.update(samples.failed)
    peers = {name: Summary.of(values) for name, values in samples.milliseconds.items()}
    ours = peers.pop("hutch")
    goals = (at_most_times(6, PYTHON), times_faster(1.8, "docker run"))
    return [Number("cold", "`hutch run -- true` from a cold shell", "ms", ours, peers, goals)]


def _run(context: Context, argv: Sequence[str], failure: type[Exception]) -> None:
    ended = subprocess.run(["/usr/bin/env", "-i", *context.environment(), *argv], capture_output=True, text=True)
    if ended.returncode != 0:
        raise failure(f"{argv[0]} ended with {ended.returncode}: {ended.stderr.strip()[-300:]}")
