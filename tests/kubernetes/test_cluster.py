"""Boxes on a real cluster: both lanes, ends of every kind, and what a box may not do to the parts beside it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hutch.errors import BoxBroken, NotFound, QuotaExceeded, Unavailable
from hutch.model.results import Cause
from hutch.model.spec import Retention
from hutch.providers.base import Command
from hutch.providers.guest_bundle.pack import guest_bundle
from hutch.providers.kubernetes import manifests
from hutch.providers.kubernetes import provider as provider_module
from hutch.providers.kubernetes.instance import PodInstance
from hutch.providers.kubernetes.pods import Phase, phase
from hutch.providers.kubernetes.provider import KubernetesProvider
from tests.kubernetes.conftest import provider_of
from tests.kubernetes.orders import order

Settings = dict[str, Any]


@asynccontextmanager
async def box(
    settings: Settings, *, provider_changes: Settings | None = None, **changes: Any
) -> AsyncIterator[tuple[KubernetesProvider, PodInstance]]:
    provider = provider_of(settings, **(provider_changes or {}))
    ordered = order(image=f"oci:{settings['image']}", **changes)
    try:
        instance = await provider.create(ordered, provider.plan(ordered))
        try:
            yield provider, instance
        finally:
            await instance.close()
    finally:
        await provider.destroy(provider.plan(ordered))
        await provider.close()


async def output(instance: PodInstance, command: str) -> str:
    result = await instance.run(Command(command=command, timeout_sec=30.0))
    return result.stdout


@pytest.mark.parametrize("lane", ["direct", "exec"])
async def test_both_lanes_reach_the_same_box(cluster_settings: Settings, lane: str) -> None:
    """A command, a file of some megabytes and a second provider object, by TLS to the Pod and by the exec API."""
    async with box(cluster_settings, provider_changes={"lane": lane}, disk_mb=64) as (_, instance):
        assert await output(instance, "echo $((6*7))") == "42\n"
        data = bytes(range(256)) * 20_000
        await instance.files.write("/workspace/data", data)
        assert await instance.files.read("/workspace/data") == data
        other = provider_of(cluster_settings, lane=lane)
        again = await other.attach(instance.record, instance.spec)
        assert await output(again, "stat -c %s data") == f"{len(data)}\n"
        await again.close()
        await other.close()


async def test_a_box_cannot_pose_as_its_keeper(cluster_settings: Settings) -> None:
    """Nothing in the box sees the relay's keys; the relay answers no stranger, and the guest no command (lesson 31)."""
    async with box(cluster_settings) as (_, instance):
        look = f"ls {manifests.RELAY_DIR} /var/run/secrets 2>/dev/null; env | grep -i kube"
        assert await output(instance, look) == ""
        code = (
            "import socket; s=socket.socket(); s.settimeout(15); s.connect(('127.0.0.1', 7301)); "
            "s.sendall(b'x' * 200); print(len(s.recv(4096)) < 64)"
        )
        argv = tuple(guest_bundle().python(code))
        result = await instance.run(Command(command=argv, timeout_sec=30.0))
        assert result.stdout.strip() == "True", result.stderr  # a TLS alert or nothing, never the guest's greeting
        direct = (
            "import socket; s=socket.socket(socket.AF_UNIX); s.settimeout(10); s.connect('/.hutch-run/guest'); "
            "print(s.recv(4096) == b'')"
        )
        result = await instance.run(Command(command=tuple(guest_bundle().python(direct)), timeout_sec=30.0))
        assert result.stdout.strip() == "True", (result.stdout, result.stderr)


async def test_memory_ends_the_command_not_the_box(cluster_settings: Settings) -> None:
    """A command past its memory is killed by the kernel, with that verdict; the box keeps running (lesson 24)."""
    async with box(cluster_settings, memory_mb=64, disk_mb=16) as (_, instance):
        result = await instance.run(Command(command="head -c 400m /dev/zero | tail", timeout_sec=60.0))
        assert result.verdict.cause is Cause.OOM, result
        assert await output(instance, "echo alive") == "alive\n"


async def test_a_deleted_pod_is_a_broken_box(cluster_settings: Settings) -> None:
    """When somebody deletes the Pod, a running command ends, and the error says what happened."""
    async with box(cluster_settings) as (provider, instance):
        running = asyncio.create_task(instance.run(Command(command="sleep 600", timeout_sec=600.0)))
        await asyncio.sleep(1)
        await provider.cluster.delete("Pod", instance.pod)
        with pytest.raises((BoxBroken, Unavailable)):
            await running
        with pytest.raises(BoxBroken, match=r"Pod was deleted|has ended"):
            while True:  # until the API server has removed it
                await instance.check()
                await asyncio.sleep(0.2)


async def test_an_image_that_cannot_be_pulled(cluster_settings: Settings) -> None:
    """The creation fails with the container's own reason, and leaves no object behind."""
    provider = provider_of(cluster_settings)
    ordered = order(image="oci:hutch.test/no-such-image:1")
    with pytest.raises(NotFound, match=r"no-such-image|ErrImage"):
        await provider.create(ordered, provider.plan(ordered))
    for kind in ("Pod", "Secret", "NetworkPolicy"):
        found = await provider.cluster.objects(kind, {manifests.BOX: ordered.box_id})
        assert [each for each in found if not each["metadata"].get("deletionTimestamp")] == []
    await provider.close()


async def test_a_box_that_fits_on_no_node(cluster_settings: Settings) -> None:
    """A Pod that stays pending is a quota with the scheduler's words, after the time that the settings give it."""
    provider = provider_of(cluster_settings, start_timeout_sec=5.0, request_share=1.0)
    ordered = order(image=f"oci:{cluster_settings['image']}", memory_mb=4_000_000)
    with pytest.raises(QuotaExceeded, match="Insufficient memory"):
        await provider.create(ordered, provider.plan(ordered))
    await provider.close()


async def test_leftovers_of_a_killed_creation_are_swept(
    cluster_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret and a policy without a Pod are removed once no creation can still want them (lesson 2)."""
    provider = provider_of(cluster_settings)
    ordered = order()
    name = manifests.name(ordered.box_id)
    await provider.cluster.create(manifests.network_policy(ordered))
    assert name not in {each.name for each in await provider.sweep()}  # It may belong to a creation that still runs.
    assert len(await provider.cluster.objects("NetworkPolicy", {manifests.BOX: ordered.box_id})) == 1
    assert await provider.sweep() == ()  # A process looks only now and then.
    monkeypatch.setattr(provider_module, "_LONG_AGO_SECONDS", 0.0)
    monkeypatch.setattr(provider_module, "_SWEEP_SECONDS", 0.0)
    assert name in {each.name for each in await provider.sweep(dry_run=True)}
    assert name in {each.name for each in await provider.sweep()}
    assert await provider.cluster.objects("NetworkPolicy", {manifests.BOX: ordered.box_id}) == []
    await provider.close()


async def test_a_pod_that_nobody_keeps_ends_and_is_swept(
    cluster_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A box whose keeper and store are gone is ended by its own clock; any other keeper removes what is left (B8)."""
    async with box(cluster_settings) as (provider, instance):
        await instance.set_clocks(orphan_grace_sec=1.0)
        await instance.close()
        async with asyncio.timeout(120):
            while phase(await provider.cluster.get("Pod", instance.pod)) is not Phase.ENDED:
                await asyncio.sleep(0.5)
        assert await provider.sweep() == ()  # Its keeper may be about to clear it away.
        monkeypatch.setattr(provider_module, "_LONG_AGO_SECONDS", 0.0)
        monkeypatch.setattr(provider_module, "_SWEEP_SECONDS", 0.0)
        assert instance.pod in {each.name for each in await provider.sweep()}
        for kind in ("Pod", "Secret", "NetworkPolicy"):
            assert await provider.cluster.objects(kind, {manifests.BOX: instance.record.box_id}) == [], kind


async def test_of_two_claims_one_wins(cluster_settings: Settings) -> None:
    """A pool's Pod gets its owner by comparing its labels: of two handles that saw it free, one has it (lesson 3)."""
    async with box(cluster_settings, owner="") as (provider, instance):
        other = provider_of(cluster_settings)
        same = await other.attach(instance.record, instance.spec)
        results = await asyncio.gather(
            instance.assign(owner="ann", keeper="keeper-1"),
            same.assign(owner="Ben <ben@example.org>", keeper="keeper-2"),
            return_exceptions=True,
        )
        assert sorted(type(each).__name__ for each in results) == ["Conflict", "NoneType"]
        metadata = (await provider.cluster.get("Pod", instance.pod))["metadata"]
        owner, keeper = ("ann", "keeper-1") if results[0] is None else ("Ben <ben@example.org>", "keeper-2")
        assert metadata["annotations"][manifests.OWNER] == owner
        assert manifests.holder(owner, keeper).items() <= metadata["labels"].items()
        await same.close()
        await other.close()


async def test_a_taken_over_box_is_followed_by_its_new_keeper(cluster_settings: Settings) -> None:
    """After a takeover the label names the new keeper, whose watch reports when the Pod ends."""
    async with box(cluster_settings) as (provider, instance):
        other = provider_of(cluster_settings)
        taken = await other.attach(instance.record, instance.spec)
        await taken.assign(owner="ann", keeper="keeper-2")
        assert [each.keeper for each in await other.list() if each.box_id == taken.record.box_id] == ["keeper-2"]
        running = asyncio.create_task(taken.run(Command(command="sleep 600", timeout_sec=600.0)))
        await asyncio.sleep(1)
        await provider.cluster.delete("Pod", instance.pod)
        with pytest.raises((BoxBroken, Unavailable)):
            await running
        await taken.close()
        await other.close()


async def test_a_stopped_box_comes_back_with_its_files(cluster_settings: Settings) -> None:
    """A persistent box keeps home and workspace on claims: its Pod is removed, a new one has the same files, and
    destroying the box removes the claims (B12)."""
    if not cluster_settings.get("storage_class"):
        pytest.skip("needs a storage class: set HUTCH_TEST_KUBE_STORAGE_CLASS")
    async with box(cluster_settings, retention=Retention.PERSISTENT) as (provider, instance):
        assert await output(instance, "echo kept > note; echo home > ~/note; cat note ~/note") == "kept\nhome\n"
        ordered = order(image=f"oci:{cluster_settings['image']}", retention=Retention.PERSISTENT)
        ordered = ordered.but(box_id=instance.record.box_id)
        await instance.close()
        await provider.stop(instance.record)
        assert await provider.cluster.objects("Pod", {manifests.BOX: ordered.box_id}) == []
        with pytest.raises(NotFound):
            await provider.attach(instance.record, instance.spec)
        again = await provider.restore(ordered, instance.record)
        assert await output(again, "cat note ~/note") == "kept\nhome\n"
        await again.close()
        await provider.destroy(again.record)
        async with asyncio.timeout(60):
            while await provider.cluster.objects("PersistentVolumeClaim", {manifests.BOX: ordered.box_id}):
                await asyncio.sleep(0.5)
