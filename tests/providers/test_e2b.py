"""E2B through its real SDK, against a small server of ours that makes a native box for each sandbox (S1)."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

from hutch import Hutch
from hutch.conformance.pytest_class import ProviderConformance
from hutch.conformance.registry import checks
from hutch.errors import ConfigError, EngineError, NotFound, Refused, Unsupported
from hutch.model.spec import NetworkMode, Order
from hutch.providers.base import Command, Provider
from hutch.providers.command.provider import canary
from hutch.providers.e2b import provider as engine
from hutch.providers.e2b.provider import E2BProvider
from tests.conformance.engines import part
from tests.providers import e2b_server

pytest.importorskip("e2b", reason="the package e2b is not installed")
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="sandboxes of the test's server have a root of their own")

_running: list[tuple[str, e2b_server.Server]] = []


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[e2b_server.Server]:
    with e2b_server.serving() as running:
        _running.append(running)
        yield running[1]
        _running.pop()


def made(**settings: Any) -> E2BProvider:
    url, _ = _running[-1]
    provider = E2BProvider()
    provider.configure({"api_key": e2b_server.KEY, "api_url": url, "sandbox_url": url, **settings})
    return provider


def order(**changes: Any) -> Order:
    plain = canary("e2b", "template:base")
    return plain.but(spec=plain.spec.but(ttl_sec=0.0, **changes))


@part("capabilities.reasons", "capabilities.no_contradiction", "capabilities.unknown_setting", "life.create",
      "life.list", "life.destroy_from_plan", "life.bad_image", "life.attach_unknown", "life.close_keeps_box",
      "life.pause", "life.ttl", "life.set_clocks", "life.broken",
      "exec.cwd", "exec.timeout", "jobs.outlive_provider", "jobs.much_input", "terminal.echo", "files.odd_names",
      "files.rights", "edits.once", "search.grep", "limits.memory", "limits.pids", "isolation.descriptors",
      "network.off")  # fmt: skip
class TestE2B(ProviderConformance):
    image = "template:base"

    @classmethod
    def make_provider(cls) -> Provider:
        return made()


async def test_the_end_of_a_sandbox_is_moved_while_somebody_holds_it(server: e2b_server.Server) -> None:
    """S4, lesson 13: the provider's own clock runs in step with ours, and not past the ttl."""
    provider = made(window_sec=1)
    asked = order()
    box = await provider.create(asked, provider.plan(asked))
    sandbox = next(each for each in server.sandboxes.values() if box.record.box_id in str(each.asked))
    while len(sandbox.timeouts) < 5:  # longer than its window
        await asyncio.sleep(0.05)
    assert set(sandbox.timeouts) == {1} and (await box.run(Command(command=("true",), timeout_sec=10))).ok
    await box.close()
    while sandbox.id in server.sandboxes:  # nobody holds it any more
        await asyncio.sleep(0.05)
    with pytest.raises(NotFound):
        await provider.attach(box.record, asked.spec)


async def test_a_ttl_is_never_moved(server: e2b_server.Server) -> None:
    provider = made(window_sec=200)
    asked = order().but(spec=order().spec.but(ttl_sec=60.0))
    box = await provider.create(asked, provider.plan(asked))
    try:
        sandbox = next(each for each in server.sandboxes.values() if box.record.box_id in str(each.asked))
        assert sandbox.timeouts and 50 <= sandbox.timeouts[-1] <= 66
        await box.set_clocks(ttl_sec=120.0)
        assert 110 <= sandbox.timeouts[-1] <= 126, "unless a keeper sets another"
    finally:
        await box.close()
        await provider.destroy(box.record)


async def test_the_guest_is_uploaded_once_for_a_sandbox_and_no_command_is_rewritten(
    server: e2b_server.Server,
) -> None:
    """What a command says is what runs; attaching again uploads nothing."""
    provider, asked = made(), order()
    before = server.uploads
    box = await provider.create(asked, provider.plan(asked))
    try:
        odd = ("printf", "%s|", "a b", "$HOME", "`id`", "/workspace", "\n")
        assert (await box.run(Command(command=odd, timeout_sec=10))).stdout_bytes == b"a b|$HOME|`id`|/workspace|\n|"
        await box.files.write("big", os.urandom(3_000_000))
        await box.close()
        box = await provider.attach(box.record, asked.spec)
        assert (await box.files.stat("big")).size == 3_000_000
        assert server.uploads == before + 1
    finally:
        await box.close()
        await provider.destroy(box.record)


async def test_internet_access_follows_the_network_of_the_spec(server: e2b_server.Server) -> None:
    provider = made()
    for network, wanted in ((NetworkMode.OFF, False), (NetworkMode.ON, True)):
        asked = order(network=network)
        box = await provider.create(asked, provider.plan(asked))
        told = next(each.asked for each in server.sandboxes.values() if box.record.box_id in str(each.asked))
        await box.close()
        await provider.destroy(box.record)
        assert told.get("allow_internet_access", True) is wanted


async def test_secrets_are_not_in_what_the_server_is_told(server: e2b_server.Server) -> None:
    provider, asked = made(), order(secrets={"TOKEN": "hush-hush"})
    box = await provider.create(asked, provider.plan(asked))
    try:
        assert (await box.run(Command(command="echo $TOKEN", timeout_sec=10))).stdout == "hush-hush\n"
        assert "hush" not in str([each.asked for each in server.sandboxes.values()])
        assert "hush" not in box.record.to_json().decode()
    finally:
        await box.close()
        await provider.destroy(box.record)


async def test_errors_are_ours() -> None:
    """Lesson 11: a wrong key, a missing template, a server that is away."""
    asked = order()
    wrong = made(api_key="e2b_" + "1" * 40)
    with pytest.raises(Refused, match="E2B"):
        await wrong.create(asked, wrong.plan(asked))
    provider = made()
    missing = order(image="template:missing")
    with pytest.raises(EngineError, match="missing"):
        await provider.create(missing, provider.plan(missing))
    with pytest.raises(Unsupported):
        await provider.create(order(read_only_root=False), provider.plan(asked))
    found = await made(api_url="http://127.0.0.1:9").probe()
    assert not found.usable and found.reason and found.remedy


async def test_a_missing_package_or_key_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """B26: not usable, why, and how."""
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    found = await made(api_key="").probe()
    assert (found.usable, "E2B_API_KEY" in found.remedy) == (False, True)
    monkeypatch.setattr(engine, "is_installed", lambda: False)
    found = await made().probe()
    assert (found.usable, found.remedy) == (False, "pip install 'hutch[e2b]'")


async def test_through_the_front_door(server: e2b_server.Server) -> None:
    url, _ = _running[-1]
    settings = {"api_key": e2b_server.KEY, "api_url": url, "sandbox_url": url}
    profile = {"accept_unenforced": ["cpus", "disk_mb"]}
    async with Hutch(providers={"e2b": settings}, profiles={"cloud": profile}) as hutch:
        with pytest.raises(Refused, match="cpus"):
            await hutch.create(provider="e2b")
        async with hutch.box(provider="e2b", profile="cloud") as box:
            assert (await box.exec("pwd; id -un")).stdout == "/workspace\nuser\n"
    assert not [each for each in server.sandboxes.values() if box.id in str(each.asked)]


def test_unknown_settings_are_named() -> None:
    with pytest.raises(ConfigError, match="speed"):
        E2BProvider().configure({"speed": 1})


@pytest.mark.proof
@part(*(check.name for check in checks() if check.name != "isolation.read_only_root"))
class TestWholeE2B(ProviderConformance):
    """All but a root that is read-only by its mount: the root of a sandbox is protected by its rights."""

    image = "template:base"

    @classmethod
    def make_provider(cls) -> Provider:
        return made()
