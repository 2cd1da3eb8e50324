"""A gigabyte of output, read to its end while the command runs, and hashed as it comes."""

from functools import partial
from hashlib import sha256
from time import perf_counter

from bench.context import Context
from bench.interleave import Candidate, interleave
from bench.numbers import Number, Summary, at_least_times
from bench.peers.engine import Engine
from hutch.api import Box

GIGABYTE = 10**9
CONTAINER_BYTES = 10**8
"""Docker gets a tenth because it is slower; the unit is bytes a second."""


async def read_stream(box: Box, size: int) -> float:
    """Read a stream of so many bytes to its end, hash it, and return the seconds that it took."""
    digest, read = sha256(), 0
    start = perf_counter()
    async for _, piece in box.stream(zeros(size)):
        digest.update(piece)
        read += len(piece)
    taken = perf_counter() - start
    assert read == size, f"{read} of {size} bytes came"
    return taken


async def output(context: Context) -> list[Number]:
    size = GIGABYTE if not context.brief else GIGABYTE // 20
    async with context.hutch() as hutch, hutch.box() as box:
        candidates = [Candidate("hutch", partial(read_stream, box, size), context.count(5))]
        docker = context.peers.engines.get("docker")
        if docker is not None:
            container = docker.create()
            candidates.append(docker_output(docker, container, context.count(5)))
        samples = await interleave(candidates, rounds=5)
        if docker is not None:
            docker.remove(container)
    context.peers.missing.update(samples.failed)
    ours = Summary.of(rates(samples.milliseconds["hutch"], size), more_is_better=True)
    peers = {
        name: Summary.of(rates(values, CONTAINER_BYTES), more_is_better=True)
        for name, values in samples.milliseconds.items()
        if name != "hutch"
    }
    goals = (at_least_times(2.5, "docker"),)
    return [Number("output", "1 GB of output, read and hashed", "MB/s", ours, peers, goals, more_is_better=True)]


def docker_output(docker: Engine, container: str, count: int) -> Candidate:
    async def once() -> float:
        return docker.hash_output(container, zeros(CONTAINER_BYTES))

    return Candidate("docker", once, count)


def zeros(size: int) -> list[str]:
    return ["head", "-c", str(size), "/dev/zero"]


def rates(milliseconds: list[float], size: int) -> list[float]:
    return [size / 1e6 / (each / 1000) for each in milliseconds]
