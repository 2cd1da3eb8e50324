"""A gigabyte of output, read to its end while the command runs, and hashed as it comes."""

from hashlib import sha256
from time import perf_counter

from bench.contest import Contender, contest
from bench.numbers import Number, Summary, at_least
from bench.setting import Setting

GIGABYTE = 10**9
CONTAINER_BYTES = 10**8
"""A tenth for Docker, which is slower: the unit is bytes a second."""


async def output(setting: Setting) -> list[Number]:
    size = GIGABYTE if not setting.brief else GIGABYTE // 20
    async with setting.hutch() as hutch, hutch.box() as box:

        async def once() -> float:
            digest, read = sha256(), 0
            start = perf_counter()
            async for _, piece in box.stream(_zeros(size)):
                digest.update(piece)
                read += len(piece)
            taken = perf_counter() - start
            assert read == size, f"{read} of {size} bytes came"
            return taken

        contenders = [Contender("hutch", once, setting.count(5))]
        docker = setting.peers.engines.get("docker")
        if docker is not None:
            container = docker.create()

            async def by_docker() -> float:
                return docker.hash_output(container, _zeros(CONTAINER_BYTES))

            contenders.append(Contender("docker", by_docker, setting.count(5)))
        outcome = await contest(contenders, rounds=5)
        if docker is not None:
            docker.remove(container)
    setting.peers.missing.update(outcome.failed)
    ours = Summary.of(_rates(outcome.milliseconds["hutch"], size), more_is_better=True)
    peers = {
        name: Summary.of(_rates(values, CONTAINER_BYTES), more_is_better=True)
        for name, values in outcome.milliseconds.items()
        if name != "hutch"
    }
    goals = (at_least(300, "MB/s"),)
    return [Number("output", "1 GB of output, read and hashed", "MB/s", ours, peers, goals, more_is_better=True)]


def _zeros(size: int) -> list[str]:
    return ["head", "-c", str(size), "/dev/zero"]


def _rates(milliseconds: list[float], size: int) -> list[float]:
    return [size / 1e6 / (each / 1000) for each in milliseconds]
