"""exec `true` in a Docker container: through Hutch's two lanes, through Docker's exec API, and as a person types it."""

import shutil
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from time import perf_counter

from bench.contest import Contender, blocking, contest
from bench.numbers import Number, Summary, times_faster
from bench.peers.daemon import CGROUP
from bench.peers.errors import PeerFailed
from bench.peers.rootfs import NAME
from bench.setting import Setting
from hutch.api import Box

PROGRAM = "/bin/true"


async def docker_lane(setting: Setting) -> list[Number]:
    engine = setting.peers.engines.get("docker")
    if engine is None:
        return []  # why it is missing is told with the peers
    settings = {"host": f"unix://{engine.path}", "image": NAME, "pull": "never", "cgroup_parent": CGROUP}
    with ExitStack() as stack:
        container = engine.create()
        stack.callback(engine.remove, container)
        contenders = [
            Contender("docker", blocking(partial(engine.exec, container, [PROGRAM])), setting.count(100)),
        ]
        if client := shutil.which("docker"):
            argv = [client, f"--host=unix://{engine.path}", "exec", container, PROGRAM]
            contenders.append(Contender("docker exec", blocking(partial(_typed, argv)), setting.count(50)))
        async with (
            setting.hutch(providers={"docker": {**settings, "lane": "fast"}}) as fast,
            setting.hutch(providers={"docker": {**settings, "lane": "api"}}) as relayed,
            fast.box(provider="docker") as box,
            relayed.box(provider="docker") as other,
        ):
            ours = Contender("hutch", _exec(box), setting.count(1000))
            contenders.append(Contender("API lane", _exec(other), setting.count(500)))
            outcome = await contest([ours, *contenders])
    setting.peers.missing.update(outcome.failed)
    peers = {name: Summary.of(values) for name, values in outcome.milliseconds.items()}
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
