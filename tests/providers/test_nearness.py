"""Whether an engine is on this machine is proven, not believed: a forwarded socket looks like any other."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hutch.errors import EngineError, Refused
from hutch.model.spec import Mount, NetworkMode
from hutch.providers.docker import guests
from hutch.providers.docker.provider import DockerProvider
from tests.providers import daemons
from tests.providers.container_boxes import box, order, run


@contextlib.asynccontextmanager
async def forwarded(daemon: daemons.Daemon, place: Path) -> AsyncIterator[str]:
    """As `ssh -L` or socat would do it: a socket here, in our network, behind which the engine answers."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
            writer.write_eof()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner = await asyncio.open_unix_connection(str(daemon.socket))
        try:
            await asyncio.gather(carry(reader, inner), carry(inner_reader, writer))
        finally:
            inner.close()
            writer.close()

    path = place / "forwarded.sock"
    server = await asyncio.start_unix_server(serve, str(path))
    async with server:
        yield f"unix://{path}"


@contextlib.contextmanager
def hidden(daemon: daemons.Daemon, place: Path) -> Iterator[Path]:
    """A directory of ours in whose place the engine, in a mount namespace of its own, has another."""
    path = place / "ours"
    path.mkdir()
    subprocess.run([*daemon.inside, "mount", "-t", "tmpfs", "none", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run([*daemon.inside, "umount", "--lazy", str(path)], check=True)


async def test_an_engine_with_other_files_is_not_beside_us(docker: daemons.Daemon, short_tmp: Path) -> None:
    """Same kernel, local socket: yet nothing is concluded from inode numbers, and no wall is claimed."""
    with hidden(docker, short_tmp) as ours:
        async with forwarded(docker, short_tmp) as host:
            provider = daemons.provider(docker, ours, host=host)
            capabilities = await provider.probe()
            assert capabilities.usable and capabilities.facts["egress"] == "not filtered"
            assert "egress" in {missing.what for missing in capabilities.missing}
            (ours / "data").mkdir()
            with pytest.raises(Refused, match="does not see our"):
                async with box(provider, order(mounts=(Mount(source=str(ours / "data"), target="/data"),))):
                    pass
            async with box(provider) as made:
                assert (await run(made, "echo works")).stdout == "works\n"


async def test_a_network_is_not_walled_where_the_engine_is_not(docker: daemons.Daemon, short_tmp: Path) -> None:
    """Who forwards listens in our network, the engine has one of its own: rules made here would hold nobody."""
    async with forwarded(docker, short_tmp) as host:
        provider = daemons.provider(docker, short_tmp, host=host)
        with pytest.raises(EngineError, match="cannot be walled"):
            async with box(provider, order(network=NetworkMode.ON)):
                pass
        capabilities = await provider.probe()
        assert NetworkMode.ON not in capabilities.networks
        answer = {missing.what: missing.reason for missing in capabilities.missing}
        assert "cannot be walled" in answer["networks.on"]
    assert NetworkMode.ON in (await daemons.provider(docker, short_tmp).probe()).networks


@pytest.mark.parametrize("claimed", ["f" * 64, "", "/", "0" * 12])
async def test_a_process_that_is_not_the_containers_opens_no_fast_lane(
    docker: daemons.Daemon, tmp_path: Path, claimed: str
) -> None:
    """An engine that names a process of ours as its container's is not believed, whatever it calls the container."""
    provider: DockerProvider = daemons.provider(docker, tmp_path)
    found = await provider._engine()
    assert found.fast
    assert guests.identify(found, {"Id": claimed, "State": {"Pid": os.getpid()}}) == {"lane": "api"}
