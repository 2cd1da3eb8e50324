"""Images pulled by the engine from a real registry, with a policy, with progress, and with the caller's login."""

import asyncio
import base64
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hutch.errors import Invalid, NotFound, Unsupported
from hutch.providers.docker.objects import images
from hutch.providers.docker.objects.images import HUB, Images, credentials, parse
from hutch.providers.docker.settings import Pull
from tests.providers import daemons, rootfs
from tests.providers.container_boxes import box, run
from tests.server.serving import serving

CONFIG = """
version: 0.1
storage: {filesystem: {rootdirectory: DIRECTORY}}
http: {addr: "127.0.0.1:5000"}
"""


@pytest.fixture
def registry(docker: daemons.Daemon, tmp_path: Path) -> Iterator[str]:
    """On the loopback of the engine's own network."""
    if shutil.which("docker-registry") is None:
        pytest.skip("docker-registry is not installed (tools/setup.sh)")
    config = tmp_path / "registry.yml"
    config.write_text(CONFIG.replace("DIRECTORY", str(tmp_path / "registry")))
    with (tmp_path / "registry.log").open("wb") as log:
        process = subprocess.Popen([*docker.inside, "docker-registry", "serve", str(config)], stdout=log, stderr=log)
    try:
        ask = ["curl", "--silent", "--fail", "--retry", "50", "--retry-connrefused", "--retry-delay", "0"]
        ask = [*docker.inside, *ask, "http://127.0.0.1:5000/v2/"]
        subprocess.run(ask, check=True, capture_output=True)
        yield "127.0.0.1:5000"
    finally:
        process.kill()
        process.wait()


async def pushed(daemon: daemons.Daemon, reference: str) -> None:
    """The small image under this name in the registry, and no longer on the engine."""
    engine = daemons.engine_of(daemon)
    name, _, tag = reference.rpartition(":")
    await engine.call("POST", f"/images/{rootfs.SMALL}/tag", query={"repo": name, "tag": tag})
    async for line in engine.http.lines(
        "POST", f"/images/{name}/push", query={"tag": tag}, headers={"X-Registry-Auth": "e30="}
    ):
        assert "error" not in line, line
    await forgotten(daemon, reference)


async def forgotten(daemon: daemons.Daemon, reference: str) -> None:
    await daemons.engine_of(daemon).call("DELETE", f"/images/{reference}")


async def test_a_missing_image_is_pulled_once_for_all_who_wait(
    docker: daemons.Daemon, registry: str, tmp_path: Path
) -> None:
    reference = f"{registry}/hutch/small:1"
    await pushed(docker, reference)
    with pytest.raises(NotFound):
        await daemons.provider(docker, tmp_path, pull="never").image(f"oci:{reference}")
    news: list[Mapping[str, Any]] = []
    engine = daemons.engine_of(docker)
    store = Images(engine, Pull.MISSING, lambda image, line: news.append(line))
    found = await asyncio.gather(*(store.ensure(f"oci:{reference}") for _ in range(3)))
    assert len({each.id for each in found}) == 1
    assert sum(line.get("status") == "pulling" for line in news) == 1, "three callers, one pull"
    assert any("Digest" in str(line.get("status")) for line in news), "the engine's own progress is passed on"
    async with box(daemons.provider(docker, tmp_path), image=f"oci:{reference}") as made:
        assert (await run(made, "echo pulled")).stdout == "pulled\n"
    with pytest.raises(NotFound) as caught:
        await store.ensure(f"oci:{registry}/hutch/absent:1")
    assert caught.value.remedy
    await forgotten(docker, reference)


async def test_always_asks_the_registry(docker: daemons.Daemon, registry: str) -> None:
    reference = f"{registry}/hutch/fresh:1"
    await pushed(docker, reference)
    news: list[str] = []
    store = Images(daemons.engine_of(docker), Pull.ALWAYS, lambda image, line: news.append(str(line.get("status"))))
    for _ in range(2):
        await store.ensure(reference)
    assert news.count("pulling") == 2
    await forgotten(docker, reference)


def test_the_engine_pulls_nothing_for_a_key_that_may_not(
    docker: daemons.Daemon, registry: str, short_tmp: Path
) -> None:  # fmt: skip
    """The engine pulls with the operator's login, from any registry: a box, and a hosted MCP server's."""
    reference = f"{registry}/hutch/closed:1"
    asyncio.run(pushed(docker, reference))
    config = short_tmp / "hutch.toml"
    table = {"host": docker.host, "image": rootfs.NAME, "cgroup_parent": daemons.CGROUP, "lane": "api"}
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in table.items())
    config.write_text(f'provider = "docker"\n[providers.docker]\n{lines}\n')
    with serving(HUTCH_CONFIG=str(config)) as server:
        user, admin = server.tcp(server.key("user", "team")), server.unix()
        spec = {"image": f"oci:{reference}"}
        answer = user.call("POST", "/v1/boxes", spec)
        assert (answer.status, answer.json()["details"]["setting"]) == (403, "rights.team.pull"), answer.json()
        definition = {"command": "true", "network": "off", **spec}
        user.good("POST", "/v1/mcp-servers", {"name": "far", "definition": definition})
        started = user.call("POST", "/v1/mcp-servers/far/start")
        assert "may not have images pulled" in started.body.decode(), started
        assert asyncio.run(daemons.engine_of(docker).image(reference)) is None
        with user.box():  # of the operator's image
            pass
        with admin.box(**spec):
            pass
        with user.box(**spec):  # it is here by now
            pass
    asyncio.run(forgotten(docker, reference))


@pytest.mark.parametrize(
    ("text", "name", "tag", "registry"),
    [
        ("oci:debian:12", "debian", "12", HUB),
        ("debian", "debian", "latest", HUB),
        ("oci:ghcr.io/a/b:c", "ghcr.io/a/b", "c", "ghcr.io"),
        ("localhost:5000/x", "localhost:5000/x", "latest", "localhost:5000"),
        (f"oci:a/b@sha256:{'0' * 64}", "a/b", f"sha256:{'0' * 64}", HUB),
        (f"oci:a/b:c@sha256:{'0' * 64}", "a/b:c", f"sha256:{'0' * 64}", HUB),
    ],
)
def test_references(text: str, name: str, tag: str, registry: str) -> None:
    found = parse(text)
    assert (found.name, found.tag, found.registry) == (name, tag, registry)


@pytest.mark.parametrize(
    "text", ["", "host", "oci:", "oci:a b", "oci:x@sha256:short", "oci:../etc", "a:b:c d", "oci:a/../b", "a//b"]
)
def test_references_that_are_none(text: str) -> None:
    with pytest.raises(Invalid):
        parse(text)


def test_the_login_of_the_engines_own_command_is_used(tmp_path: Path) -> None:
    """`docker login` has written it down, or left it to a helper; the secret is sent to the engine and nowhere else."""
    config = tmp_path / "config.json"
    environment = {"DOCKER_CONFIG": str(tmp_path)}
    assert credentials("ghcr.io", environment) == ""
    config.write_text(json.dumps({"auths": {"ghcr.io": {"auth": base64.b64encode(b"me:pass:word").decode()}}}))
    sent = json.loads(base64.urlsafe_b64decode(credentials("ghcr.io", environment)))
    assert sent == {"username": "me", "password": "pass:word", "serveraddress": "ghcr.io"}
    assert credentials("quay.io", environment) == ""


def test_a_credential_helper_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = tmp_path / "docker-credential-test"
    helper.write_text(
        '#!/bin/sh\nread registry\necho "{\\"Username\\": \\"<token>\\", \\"Secret\\": \\"for $registry\\"}"\n'
    )
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "config.json").write_text(json.dumps({"credHelpers": {"ghcr.io": "test"}}))
    sent = json.loads(base64.urlsafe_b64decode(credentials("ghcr.io", {"DOCKER_CONFIG": str(tmp_path)})))
    assert sent == {"identitytoken": "for ghcr.io", "serveraddress": "ghcr.io"}


def test_an_image_for_another_machine_is_refused() -> None:
    with pytest.raises(Unsupported, match="and our guest for linux"):
        images.facts({"Id": "x", "Architecture": "s390x", "Os": "linux"}, "other")
