"""A real engine dies and comes back, and status, readiness, tools and hosted MCP servers all report the truth."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hutch import Hutch
from hutch.errors import HutchError
from hutch.keeper import engines
from hutch.model.status import Condition
from hutch.tools import Tools
from tests.providers import daemons, rootfs
from tests.server.serving import Client, Server

PLAIN = {"name": "plain", "definition": {"command": "true"}}


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest) -> Iterator[tuple[str, daemons.Daemon]]:
    if request.param == "docker":
        yield "docker", request.getfixturevalue("docker")
        return
    with daemons.podman() as daemon:
        yield "podman", daemon


def table(daemon: daemons.Daemon) -> dict[str, Any]:
    return {"host": daemon.host, "image": rootfs.NAME, "cgroup_parent": daemons.CGROUP, "lane": "api"}


def lines(daemon: daemons.Daemon) -> str:
    """The same in a configuration file."""
    return "\n".join(f"{name} = {json.dumps(value)}" for name, value in table(daemon).items())


async def schemas(hutch: Hutch) -> list[dict[str, Any]]:
    """The tools that a model is shown."""
    tools = Tools(hutch)
    try:
        return await tools.schemas("openai")
    finally:
        await tools.close()


def reports(client: Client, server: Server) -> dict[str, Any]:
    """Everything over HTTP that says whether boxes can be made."""

    async def tools() -> bool:
        async with Hutch(f"unix:{server.run}/server.sock") as hutch:
            return bool(await schemas(hutch))

    return {
        "ready": client.call("GET", "/readyz").status == 200,
        "available": client.good("GET", "/v1/status")["available"],
        "usable": client.good("GET", "/v1/providers?name=docker")["providers"][0]["usable"],
        "tools": asyncio.run(tools()),
    }


def test_after_failed_creations_nothing_says_that_boxes_can_be_made(docker: daemons.Daemon, short_tmp: Path) -> None:
    """Lesson 41: the probe was good, the daemon died; the first creation that fails makes every report ask again."""
    config = short_tmp / "hutch.toml"
    config.write_text(f'provider = "docker"\n[providers.docker]\n{lines(docker)}\n')
    server = Server(HUTCH_CONFIG=str(config))
    try:
        server.start()
        client = server.unix()
        assert set(reports(client, server).values()) == {True}
        client.good("POST", "/v1/mcp-servers", PLAIN)
        docker.kill()
        assert client.call("POST", "/v1/boxes", {}).status == 503
        assert set(reports(client, server).values()) == {False}
        hosted = client.call("POST", "/v1/mcp-servers/plain/start")
        assert "none can be made here" in hosted.body.decode()
        docker.start()
        with client.box():
            assert set(reports(client, server).values()) == {True}
    finally:
        server.close()


async def test_a_good_probe_grows_old(docker: daemons.Daemon, short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lesson 41: nobody has tried to make a box since, and the dead engine is found out all the same."""
    places = {"state_dir": str(short_tmp / "s"), "run_dir": str(short_tmp / "r")}
    async with Hutch(**places, provider="docker", providers={"docker": table(docker)}) as hutch:
        assert (await hutch.status()).state is Condition.READY
        docker.kill()
        try:
            monkeypatch.setattr(engines, "USABLE_SECONDS", 0.0)
            status = await hutch.status()
            assert (status.available, status.state, status.provider) == (False, Condition.UNAVAILABLE, "docker")
            assert status.reason and status.remedy
            assert not (await hutch.providers("docker"))[0].usable
        finally:
            docker.start()


async def test_a_stand_in_that_works_is_seen(docker: daemons.Daemon, short_tmp: Path) -> None:
    """Lesson 42, S10: available means that some provider of the chain can make a box of the default profile."""
    places = {"state_dir": str(short_tmp / "s"), "run_dir": str(short_tmp / "r")}
    chain = {"provider": "docker", "fallback": ["native"], "providers": {"docker": table(docker)}}
    async with Hutch(**places, **chain) as hutch:
        assert (await hutch.status()).state is Condition.READY
        docker.kill()
        try:
            async with hutch.box() as box:
                assert (await box.info()).provider == "native"
            status = await hutch.status()
            assert (status.available, status.state, status.provider) == (True, Condition.DEGRADED, "native")
            assert status.reason.startswith("provider native stands in (docker: ")
            assert await schemas(hutch)
        finally:
            docker.start()
        async with hutch.box(provider="docker"):
            assert ((await hutch.status()).state, (await hutch.status()).provider) == (Condition.READY, "docker")


def test_a_stand_in_serves_at_every_door(docker: daemons.Daemon, short_tmp: Path) -> None:
    """Lesson 42, S10: the engine that was asked for is dead; readiness, status, tools and hosted MCP servers all see
    the one that stands in, before anybody has tried to make a box and afterwards."""
    config = short_tmp / "hutch.toml"
    config.write_text(f'provider = "docker"\nfallback = ["native"]\n[providers.docker]\n{lines(docker)}\n')
    docker.kill()
    server = Server(HUTCH_CONFIG=str(config))
    try:
        server.start()
        client = server.unix()
        for tried in (False, True):
            answer = reports(client, server)
            assert (answer.pop("usable"), set(answer.values())) == (False, {True}), (tried, answer)
            status = client.good("GET", "/v1/status")
            assert (status["state"], status["provider"]) == ("degraded", "native"), status
            with client.box() as path:
                assert client.good("GET", path)["provider"] == "native"
        client.good("POST", "/v1/mcp-servers", PLAIN)
        hosted = client.call("POST", "/v1/mcp-servers/plain/start")
        assert "none can be made here" not in hosted.body.decode() and '"phase":"mcp_init"' in hosted.body.decode()
    finally:
        server.close()
        docker.start()


async def test_an_image_that_nobody_named_is_asked_for(engine: tuple[str, daemons.Daemon], short_tmp: Path) -> None:
    """P4: an engine of images without an image says what is missing, and status says so beforehand."""
    places = {"state_dir": str(short_tmp / "s"), "run_dir": str(short_tmp / "r")}
    name, daemon = engine
    async with Hutch(**places, provider=name, providers={name: {**table(daemon), "image": ""}}) as hutch:
        with pytest.raises(HutchError, match=f"{name} makes boxes from images, and none is named") as refused:
            await hutch.create()
        assert f"[providers.{name}]" in (refused.value.remedy or "")
        assert not (await hutch.status()).available
        assert "none is named" in (await hutch.status()).reason
