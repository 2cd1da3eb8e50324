"""`Hutch.mcp_servers`: the same protocol for a process that hosts MCP servers itself and for a client of a server."""

from pathlib import Path

import pytest

from hutch import Hutch
from hutch.errors import Conflict, NotFound
from hutch.model.mcp import ServerState
from tests.mcp.hosting.hosted_servers import plain, text_of
from tests.server.serving import serving


async def _tour(hutch: Hutch, place: Path) -> None:
    servers = hutch.mcp_servers
    info = await servers.add("plain", plain(place))
    assert (info.name, info.state, info.boxed) == ("plain", ServerState.STOPPED, True)
    with pytest.raises(Conflict):
        await servers.add("plain", plain(place))
    assert "echo" in [tool.name for tool in await servers.tools("plain")]
    assert "hi" in text_of(await servers.call("plain", "echo", {"text": "hi"}))
    running = await servers.info("plain")
    assert running.state is ServerState.READY and running.box in [box.id for box in await hutch.boxes()]
    assert [each.name for each in await hutch.for_session("other").mcp_servers.all()] == ["plain"]
    assert (await servers.stop("plain")).state is ServerState.STOPPED
    assert (await servers.restart("plain")).state is ServerState.READY
    assert isinstance(await servers.logs("plain"), tuple)
    await servers.remove("plain")
    with pytest.raises(NotFound):
        await servers.info("plain")


async def test_a_process_that_hosts_its_own(tmp_path: Path) -> None:
    """Embedded, the servers and their boxes end with the Hutch (B32, B37)."""
    async with Hutch(mount_roots=(), state_dir=tmp_path / "state") as hutch:
        await _tour(hutch, tmp_path / "project")
        await hutch.mcp_servers.add("left", plain(tmp_path / "project"))
        await hutch.mcp_servers.start("left")
    async with Hutch(mount_roots=(), state_dir=tmp_path / "state") as later:
        assert await later.boxes() == ()
        (left,) = await later.mcp_servers.all()
        assert (left.name, left.state) == ("left", ServerState.STOPPED)
        await later.mcp_servers.remove("left")


async def test_a_client_of_a_server(tmp_path: Path) -> None:
    """Over HTTP with the same calls (B32)."""
    with serving() as server:
        async with Hutch(f"unix:{server.run}/server.sock") as hutch:
            await _tour(hutch, tmp_path / "project")
