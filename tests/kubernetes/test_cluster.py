"""Boxes on a real cluster: both lanes, ends of every kind, and what a box may not do to the parts beside it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hutch.errors import BoxBroken, NotFound, QuotaExceeded, Unavailable
from hutch.model.results import Cause
from hutch.providers.base import Command
from hutch.providers.guest_bundle.pack import guest_bundle
from hutch.providers.kubernetes import manifests
from hutch.providers.kubernetes.instance import PodInstance
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
    """A command past its memory is killed by the kernel, with that verdict; the box goes on (lesson 24)."""
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


async def test_leftovers_of_a_killed_creation_are_swept(cluster_settings: Settings) -> None:
    """A secret and a policy without a Pod are removed once no creation can still want them (lesson 2)."""
    provider = provider_of(cluster_settings)
    ordered = order()
    await provider.cluster.create(manifests.network_policy(ordered))
    assert await provider.sweep() == ()  # it may belong to a creation that still runs
    found = await provider.cluster.objects("NetworkPolicy", {manifests.BOX: ordered.box_id})
    assert len(found) == 1
    await provider.destroy(provider.plan(ordered))
    assert await provider.cluster.objects("NetworkPolicy", {manifests.BOX: ordered.box_id}) == []
    await provider.close()
