"""`hutch run -- true` as a person types it in a fresh shell: a new process, no environment, nothing kept."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench.contest import Contender, blocking, contest
from bench.numbers import Number, Summary, at_most
from bench.peers.errors import PeerFailed, PeerMissing
from bench.setting import Setting


async def cold(setting: Setting) -> list[Number]:
    hutch = shutil.which("hutch", path=str(Path(sys.executable).parent)) or shutil.which("hutch")
    if hutch is None:
        raise FileNotFoundError("the `hutch` command is not installed beside this Python")
    run = [hutch, "run", "--", "true"]
    contenders = [Contender("hutch", blocking(partial(_run, setting, run, RuntimeError)), setting.count(60))]
    for name in setting.peers.engines:
        try:
            typed = setting.peers.command_line(name)
        except PeerMissing as missing:
            setting.peers.missing[f"{name} run"] = str(missing)
            continue
        work: Callable[[], None] = partial(_run, setting, typed, PeerFailed)
        contenders.append(Contender(f"{name} run", blocking(work), setting.count(20)))
    if argv := setting.peers.bwrap:
        contenders.append(Contender("bwrap", blocking(partial(_run, setting, argv, PeerFailed)), setting.count(60)))
    outcome = await contest(contenders)
    setting.peers.missing.update(outcome.failed)
    peers = {name: Summary.of(values) for name, values in outcome.milliseconds.items()}
    ours = peers.pop("hutch")
    return [Number("cold", "`hutch run -- true` from a cold shell", "ms", ours, peers, (at_most(150, "ms"),))]


def _run(setting: Setting, argv: Sequence[str], failure: type[Exception]) -> None:
    ended = subprocess.run(["/usr/bin/env", "-i", *setting.environment(), *argv], capture_output=True, text=True)
    if ended.returncode != 0:
        raise failure(f"{argv[0]} ended with {ended.returncode}: {ended.stderr.strip()[-300:]}")
