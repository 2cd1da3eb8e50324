"""exec `true` in a Docker container: through Hutch's two lanes, through Docker's exec API, and as a person types it."""

import shutil
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from time import perf_counter

from bench.context import Context
from bench.interleave import Candidate, blocking, interleave
from bench.numbers import Number, Summary, times_faster
from bench.peers.daemon import CGROUP
from bench.peers.errors import PeerFailed
from bench.peers.rootfs import NAME
from hutch.api import Box

PROGRAM = "/bin/true"


async def docker_lane(context: Context) -> list[Number]:
    engine = context.peers.engines.get("docker")
    if engine is None:
        return []  # the list of peers says why it is missing
    settings = {"host": f"unix://{engine.path}", "image": NAME, "pull": "never", "cgroup_parent": CGROUP}
    with ExitStack() as stack:
        container = engine.create()
        stack.callback(engine.remove, container)
        candidates = [
            Candidate("docker", blocking(partial(engine.exec, container, [PROGRAM])), context.count(100)),
        ]
        if client := shutil.which("docker"):
            argv = [client, f"--host=unix://{engine.path}", "exec", container, PROGRAM]
            candidates.append(Candidate("docker exec", blocking(partial(_typed, argv)), context.count(50)))
        async with (
            context.hutch(providers={"docker": {**settings, "lane": "fast"}}) as fast,
            context.hutch(providers={"docker": {**settings, "lane": "api"}}) as relayed,
            fast.box(provider="docker") as box,
            relayed.box(provider="docker") as other,
        ):
            ours = Candidate("hutch", _exec(box), context.count(1000))
            candidates.append(Candidate("API lane", _exec(other), context.count(500)))
            samples = await interleave([ours, *candidates])
    context.peers.missing.update(samples.failed)
    peers = {name: Summary.of(values) for name, values in samples.milliseconds.items()}
    mine = peers.pop("hutch")
    what = "exec `true` in a Docker container, fast lane"
    return [Number("docker_lane", what, "ms", mine, peers, (times_faster(15, "docker"),))]


def _exec(box: Box) -> Callable[[], Awaitable[float]]:
    async def once() -> float:
        start = perf_counter()
        result = await box.exec([PROGRAM])
        taken = perf_counter() - start
        assert result.exit_code == 0
        return taken

    return once


def _typed(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise PeerFailed(f"docker exec: {done.stderr.strip()[:200]}")
