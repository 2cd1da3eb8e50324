"""A container's network: its own, out of our range, and nothing private behind it (lessons 28, 31)."""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from hutch.errors import EngineError, Unsupported
from hutch.model.spec import NetworkMode
from hutch.providers.base import Command
from hutch.providers.docker import labels
from hutch.providers.docker.objects import networks
from hutch.providers.guest_bundle.pack import guest_bundle
from tests.providers import daemons
from tests.providers.container_boxes import box, order, run

LISTEN = """
import socket, sys
server = socket.create_server((sys.argv[1], 0), backlog=16)
print(server.getsockname()[1], flush=True)
while True:
    caller, _ = server.accept()
    caller.send(b"reached")
    caller.close()
"""


@contextmanager
def listener(daemon: daemons.Daemon, address: str) -> Iterator[int]:
    """Something beside the engine that answers every caller; its port."""
    argv = [*daemon.inside, "python3", "-c", LISTEN, address]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


def beside(daemon: daemons.Daemon, *argv: str) -> str:
    """What a program says that runs in the engine's own network."""
    return subprocess.run([*daemon.inside, *argv], check=True, stdout=subprocess.PIPE, text=True).stdout


@contextmanager
def far_machine(daemon: daemons.Daemon) -> Iterator[int]:
    """A machine behind the engine's, at the private address 172.30.0.2, that answers every caller; its port."""
    beside(daemon, "sh", "-c", """
        ip link add far type veth peer name near && ip address add 172.30.0.1/24 dev near && ip link set near up
        ip netns add far && ip link set far netns far && sysctl -qw net.ipv4.ip_forward=1
        ip -n far address add 172.30.0.2/24 dev far && ip -n far link set far up
        ip -n far route add default via 172.30.0.1""")  # fmt: skip
    argv = [*daemon.inside, "ip", "netns", "exec", "far", "python3", "-c", LISTEN, "0.0.0.0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()
            beside(daemon, "ip", "netns", "delete", "far")


def call(address: str, port: int) -> str:
    return f"exec 3<>/dev/tcp/{address}/{port} && cat <&3"


async def test_the_machine_is_out_of_reach(docker: daemons.Daemon, tmp_path: Path) -> None:
    """Neither the gateway nor any other address of the machine, however a route leads there."""
    for address in ("10.99.0.1/32", "192.168.99.1/32"):
        beside(docker, "ip", "address", "add", address, "dev", "lo")
    provider = daemons.provider(docker, tmp_path)
    async with box(provider, network=NetworkMode.ON) as made:
        found = await daemons.engine_of(docker).inspect(made.container)
        assert found is not None
        network = found["NetworkSettings"]["Networks"][labels.network(made.record.box_id)]
        assert IPv4Network(f"{network['IPAddress']}/28", strict=False).subnet_of(IPv4Network("10.231.0.0/16"))
        for address in (network["Gateway"], "10.99.0.1", "192.168.99.1"):
            with listener(docker, "0.0.0.0") as port:
                result = await run(made, call(address, port))
                assert "reached" not in result.stdout and result.exit_code != 0, address
                # The wall is what stops it: the same call from beside the engine comes through.
                assert beside(docker, "bash", "-c", call(address, port)) == "reached"


async def test_private_ranges_are_refused_unless_allowed(docker: daemons.Daemon, tmp_path: Path) -> None:
    """A machine behind the engine's, at a private address: refused, and reached by the box that may."""
    provider = daemons.provider(docker, tmp_path)
    with far_machine(docker) as port:
        async with box(provider, network=NetworkMode.ON) as made:
            assert (await run(made, call("172.30.0.2", port))).exit_code != 0
        async with box(provider, network=NetworkMode.ON, allow_private=("172.30.0.0/24",)) as made:
            assert (await run(made, call("172.30.0.2", port))).stdout == "reached"


async def test_neighbours_do_not_reach_each_other(docker: daemons.Daemon, tmp_path: Path) -> None:
    provider = daemons.provider(docker, tmp_path)
    async with box(provider, network=NetworkMode.ON) as one, box(provider, network=NetworkMode.ON) as two:
        found = await daemons.engine_of(docker).inspect(two.container)
        assert found is not None
        address = found["NetworkSettings"]["Networks"][labels.network(two.record.box_id)]["IPAddress"]
        job = await two.start(Command(command=tuple(guest_bundle().python(LISTEN, "0.0.0.0"))))
        port = int((await job.read(wait=30.0)).text)
        assert (await run(two, call(address, port))).stdout == "reached"
        assert (await run(one, call(address, port))).exit_code != 0


async def test_nothing_of_a_network_remains(docker: daemons.Daemon, tmp_path: Path) -> None:
    provider = daemons.provider(docker, tmp_path)
    walls = networks.NetworkWalls(daemons.engine_of(docker))
    async with box(provider, network=NetworkMode.ON) as made:
        assert made.record.box_id in await walls.boxes()
        assert len(await daemons.engine_of(docker).networks(labels.BOX)) == 1
    assert await walls.boxes() == set() and await daemons.engine_of(docker).networks(labels.BOX) == []


async def test_many_networks_fit_and_a_full_range_says_so(docker: daemons.Daemon, tmp_path: Path) -> None:
    """More than the engine's own pools hold (about 30), at once; a range that is used up is an error with a remedy."""
    engine = daemons.engine_of(docker)
    made = [f"{number:020d}" for number in range(16)]
    try:
        subnets = await asyncio.gather(
            *(networks.create(engine, each, {}, "10.240.0.0/24", options={}) for each in made)
        )
        assert len(set(subnets)) == 16
        with pytest.raises(EngineError, match="no /28 of 10") as caught:
            await networks.create(engine, "x" * 20, {}, "10.240.0.0/24", options={})
        assert "addresses" in caught.value.remedy
    finally:
        for each in made:
            await engine.remove_network(labels.network(each))


def test_the_walls_rules_name_the_box_and_what_it_may_reach() -> None:
    forbidden, allowed = [IPv4Network("10.0.0.0/8")], [IPv4Network("10.1.0.0/16")]
    rules = networks.ruleset("b" * 20, forbidden, allowed, [])
    assert f'"{networks.bridge("b" * 20)}"' in rules and len(networks.bridge("b" * 20)) <= 15
    assert rules.index("10.1.0.0/16 } accept") < rules.index("@refused reject")


async def test_a_network_that_cannot_be_kept_is_refused(docker: daemons.Daemon, tmp_path: Path) -> None:
    """Nothing opens under a name that promises a filter, and nothing is left of the attempt."""
    provider = daemons.provider(docker, tmp_path)
    wanted = order(network=NetworkMode.ALLOWLIST)
    with pytest.raises(Unsupported):
        await provider.create(wanted, provider.plan(wanted))
    assert await daemons.engine_of(docker).networks(labels.BOX) == []


def test_a_free_part_of_the_range_overlaps_nothing_that_is_there() -> None:
    pool = IPv4Network("10.231.0.0/24")
    taken = [IPv4Network(text) for text in ("10.231.0.0/25", "10.231.0.128/27", "10.231.0.165/32", "192.168.0.0/16")]
    left = sorted(networks.free(pool, taken))
    assert left == [IPv4Network(f"10.231.0.{last}/28") for last in (176, 192, 208, 224, 240)]
    assert list(networks.free(pool, [IPv4Network("10.0.0.0/8")])) == []
