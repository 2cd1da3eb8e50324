"""Boxes as agent-sandbox's Sandboxes on a real cluster, where its definitions and its controller are installed."""

import asyncio
from typing import Any

import pytest

from hutch.errors import BoxBroken, NotFound, Unsupported
from hutch.model.spec import Retention
from hutch.providers.kubernetes import manifests
from tests.kubernetes.conftest import provider_of
from tests.kubernetes.orders import order
from tests.kubernetes.test_cluster import box, output

Settings = dict[str, Any]


@pytest.fixture
def sandbox_settings(cluster_settings: Settings) -> Settings:
    if not asyncio.run(has_agent_sandbox(cluster_settings)):
        pytest.skip("needs agent-sandbox in the cluster")
    return {**cluster_settings, "workload": "sandbox"}


async def has_agent_sandbox(settings: Settings) -> bool:
    provider = provider_of(settings)
    try:
        await provider.cluster.sandbox_api()
    except Unsupported:
        return False
    finally:
        await provider.close()
    return True


async def test_a_box_is_a_sandbox(sandbox_settings: Settings) -> None:
    """The Sandbox has the Pod that Hutch would have made; a new owner and keeper reach its labels through the
    controller; any keeper finds it again; and destroying it leaves neither Sandbox nor Pod."""
    async with box(sandbox_settings) as (provider, instance):
        assert await output(instance, "echo $((6*7))") == "42\n"
        pod = await provider.cluster.get("Pod", instance.pod)
        assert [each["kind"] for each in pod["metadata"]["ownerReferences"]] == ["Sandbox"]
        await instance.assign(owner="ben", keeper="keeper-2")
        async with asyncio.timeout(60):
            while pod["metadata"]["labels"][manifests.KEEPER] != "keeper-2":
                await asyncio.sleep(0.2)
                pod = await provider.cluster.get("Pod", instance.pod)
        assert pod["metadata"]["annotations"][manifests.OWNER] == "ben"
        other = provider_of(sandbox_settings)
        again = await other.attach(instance.record, instance.spec)
        assert await output(again, "echo $((6*7))") == "42\n"
        (listed,) = [each for each in await other.list() if each.box_id == instance.record.box_id]
        await again.close()
        await other.destroy(listed)
        for kind in ("Sandbox", "Pod", "Secret", "NetworkPolicy"):
            assert await other.cluster.objects(kind, {manifests.BOX: listed.box_id}) == [], kind
        await other.close()


async def test_a_recreated_pod_is_not_the_box(sandbox_settings: Settings) -> None:
    """agent-sandbox replaces a deleted Pod by an empty one of the same name: nobody takes that one for the box."""
    async with box(sandbox_settings) as (provider, instance):
        await provider.cluster.delete("Pod", instance.pod)
        with pytest.raises(BoxBroken, match=r"made anew|was deleted|has ended"):
            while True:  # Until the links are known to be broken.
                await instance.check()
                await asyncio.sleep(0.2)
        async with asyncio.timeout(120):
            while True:
                try:
                    pod = await provider.cluster.get("Pod", instance.pod)
                except NotFound:
                    await asyncio.sleep(0.2)
                    continue
                if pod["status"].get("phase") == "Running":
                    break
                await asyncio.sleep(0.2)
        assert pod["metadata"]["uid"] != instance.record.data["uid"]
        with pytest.raises(NotFound, match="made anew"):
            await provider.attach(instance.record, instance.spec)
        with pytest.raises(BoxBroken, match="made anew"):
            await instance.check()


async def test_a_stopped_sandbox_comes_back_with_its_files(sandbox_settings: Settings) -> None:
    """A persistent box is the same as one in a Pod of our own: its claims outlive its Sandbox (B12)."""
    if not sandbox_settings.get("storage_class"):
        pytest.skip("needs a storage class: set HUTCH_TEST_KUBE_STORAGE_CLASS")
    async with box(sandbox_settings, retention=Retention.PERSISTENT) as (provider, instance):
        assert await output(instance, "echo kept > note; cat note") == "kept\n"
        ordered = order(image=f"oci:{sandbox_settings['image']}", retention=Retention.PERSISTENT)
        ordered = ordered.but(box_id=instance.record.box_id)
        await instance.close()
        await provider.stop(instance.record)
        assert await provider.cluster.objects("Sandbox", {manifests.BOX: ordered.box_id}) == []
        again = await provider.restore(ordered, instance.record)
        assert await output(again, "cat note") == "kept\n"
        await again.close()
