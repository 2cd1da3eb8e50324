"""E2B's own SDK, unmodified: against Hutch's server, beside Docker's API for the same work without a network."""

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from time import perf_counter
from typing import Any

from bench.context import Context
from bench.interleave import Candidate, Samples, blocking, interleave
from bench.measures.http import served
from bench.numbers import Number, Summary, times_faster
from bench.peers.engine import Engine
from hutch.server.e2b.credentials import to_e2b_key

CREATE, RUN = "`Sandbox.create()` through E2B's SDK", '`commands.run("true")` through E2B\'s SDK'


async def e2b(context: Context) -> list[Number]:
    """`Sandbox.create()` beside a container that is created and started; `commands.run` beside its exec."""
    docker = context.peers.engines.get("docker")
    async with served(context, "e2b") as server:
        options: dict[str, Any] = {
            "api_key": to_e2b_key(server.key), "api_url": server.url, "sandbox_url": server.url, "timeout": 3600,
            "allow_internet_access": False,
        }  # fmt: skip
        creates = [Candidate("hutch", _creating(options), context.count(100))]
        if docker is not None:
            creates.append(Candidate("docker", _starting(docker), context.count(20)))
        created = await interleave(creates)
        with ExitStack() as stack:
            ran = await interleave(_runs(context, options, docker, stack))
    context.peers.missing.update(created.failed | ran.failed)
    return [_number("e2b_create", CREATE, created, 10), _number("e2b_run", RUN, ran, 4)]


def _creating(options: dict[str, Any]) -> Callable[[], Awaitable[float]]:
    from e2b import Sandbox

    async def once() -> float:
        start = perf_counter()
        sandbox = Sandbox.create(**options)
        taken = perf_counter() - start
        sandbox.kill()
        return taken

    return once


def _starting(engine: Engine) -> Callable[[], Awaitable[float]]:
    async def once() -> float:
        start = perf_counter()
        container = engine.create()
        taken = perf_counter() - start
        engine.remove(container)
        return taken

    return once


def _runs(context: Context, options: dict[str, Any], docker: Engine | None, stack: ExitStack) -> list[Candidate]:
    from e2b import Sandbox

    sandbox = Sandbox.create(**options)
    stack.callback(sandbox.kill)
    runs = [Candidate("hutch", blocking(lambda: sandbox.commands.run("true")), context.count(300))]
    if docker is not None:
        container = docker.create()
        stack.callback(docker.remove, container)
        runs.append(Candidate("docker", blocking(partial(docker.exec, container, ["true"])), context.count(50)))
    return runs


def _number(name: str, text: str, samples: Samples, goal: float) -> Number:
    peers = {each: Summary.of(values) for each, values in samples.milliseconds.items()}
    ours = peers.pop("hutch")
    return Number(name, text, "ms", ours, peers, (times_faster(goal, "docker"),))
