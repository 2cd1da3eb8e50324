"""E2B through its real SDK, against a Hutch server, whose sandboxes are native boxes (S1, S13)."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import e2b
import pytest

from hutch import Hutch
from hutch.conformance.pytest_class import ProviderConformance
from hutch.conformance.registry import checks
from hutch.errors import ConfigError, EngineError, NotFound, Refused, Unsupported
from hutch.model.spec import NetworkMode, Order
from hutch.providers.base import Command, Instance, Provider
from hutch.providers.command.provider import canary
from hutch.providers.e2b import provider as engine
from hutch.providers.e2b.provider import E2BProvider
from tests.conformance.engines import part
from tests.e2e.e2b_sdk import E2B
from tests.server.serving import serving

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the guest is installed by a sandbox's root")

_running: list[E2B] = []


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[E2B]:
    with serving() as running:
        _running.append(E2B(running))
        yield _running[-1]
        _running.pop()


def made(**settings: Any) -> E2BProvider:
    provider = E2BProvider()
    provider.configure({**_running[-1].options, **settings})
    return provider


def sandbox_of(box: Instance) -> e2b.SandboxInfo:
    """The sandbox of a box, as the server shows it."""
    return e2b.Sandbox.get_info(str(box.record.data["sandbox"]), **_running[-1].options)


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


async def test_the_end_of_a_sandbox_is_moved_while_somebody_holds_it() -> None:
    """S4, lesson 13: the provider's own clock runs in step with ours, and ends the sandbox when nobody holds it."""
    provider = made(window_sec=3)
    asked = order()
    box = await provider.create(asked, provider.plan(asked))
    ends = {sandbox_of(box).end_at}
    while len(ends) < 3:
        ends.add(sandbox_of(box).end_at)
        await asyncio.sleep(0.2)
    assert (await box.run(Command(command=("true",), timeout_sec=10))).ok
    await box.close()
    while True:  # nobody holds it any more
        try:
            sandbox_of(box)
        except e2b.NotFoundException:
            break
        await asyncio.sleep(0.2)
    with pytest.raises(NotFound):
        await provider.attach(box.record, asked.spec)


async def test_a_ttl_is_never_moved() -> None:
    """S4, lesson 13: the sandbox ends soon after the ttl, unless a keeper sets another."""
    provider = made(window_sec=200)
    asked = order().but(spec=order().spec.but(ttl_sec=60.0))
    box = await provider.create(asked, provider.plan(asked))
    try:
        info = sandbox_of(box)
        assert 40 <= (info.end_at - info.started_at).total_seconds() <= 90
        await box.set_clocks(ttl_sec=150.0)
        assert (sandbox_of(box).end_at - info.end_at).total_seconds() > 60
    finally:
        await box.close()
        await provider.destroy(box.record)


async def test_no_command_is_rewritten_and_attaching_finds_the_same_guest() -> None:
    """What a command says is what runs, and files are there again after attaching."""
    provider, asked = made(), order()
    box = await provider.create(asked, provider.plan(asked))
    try:
        odd = ("printf", "%s|", "a b", "$HOME", "`id`", "/workspace", "\n")
        assert (await box.run(Command(command=odd, timeout_sec=10))).stdout_bytes == b"a b|$HOME|`id`|/workspace|\n|"
        await box.files.write("big", os.urandom(3_000_000))
        await box.close()
        box = await provider.attach(box.record, asked.spec)
        assert (await box.files.stat("big")).size == 3_000_000
    finally:
        await box.close()
        await provider.destroy(box.record)


async def test_internet_access_follows_the_network_of_the_spec() -> None:
    """The sandbox has a network only if the spec asks for one."""
    provider = made()
    for network in (NetworkMode.OFF, NetworkMode.ON):
        asked = order(network=network)
        box = await provider.create(asked, provider.plan(asked))
        allowed = sandbox_of(box).allow_internet_access
        await box.close()
        await provider.destroy(box.record)
        assert allowed is (network is NetworkMode.ON)


async def test_secrets_are_not_sent_to_the_server(server: E2B) -> None:
    """(A secret reaches the command, and neither the record nor the server's own log or list.)"""
    provider, asked = made(), order(secrets={"TOKEN": "hush-hush"})
    box = await provider.create(asked, provider.plan(asked))
    try:
        assert (await box.run(Command(command="echo $TOKEN", timeout_sec=10))).stdout == "hush-hush\n"
        boxes = server.server.unix(hutch_admin="yes").call("GET", "/v1/boxes").body
        assert b"hush" not in boxes
        assert b"hush" not in server.server.log.read_bytes()
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


async def test_through_the_front_door(server: E2B) -> None:
    """(S1, S13) Hutch on Hutch: a box of the E2B provider is a sandbox of a Hutch server, and ends with it."""
    profile = {"accept_unenforced": ["cpus", "disk_mb"]}
    async with Hutch(providers={"e2b": server.options}, profiles={"cloud": profile}) as hutch:
        with pytest.raises(Refused, match="cpus"):
            await hutch.create(provider="e2b")
        async with hutch.box(provider="e2b", profile="cloud") as box:
            assert (await box.exec("pwd; id -un")).stdout == "/workspace\nuser\n"
    query = e2b.SandboxQuery(metadata={"hutch-box": box.id})
    assert e2b.Sandbox.list(query=query, **server.options).next_items() == []


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
