"""What a real cluster shows: the whole conformance kit, and how fast boxes are beside the cluster's own means."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from hutch.conformance import kit
from hutch.conformance.kit import Outcome
from hutch.keeper.boxes.records import LOCAL_OWNER
from hutch.keeper.embedded import Hutch
from hutch.providers.base import Command
from hutch.providers.kubernetes import manifests
from tests.kubernetes.conftest import provider_of
from tests.kubernetes.deployed import deployed
from tests.kubernetes.orders import order
from tests.kubernetes.test_deployed import live_once
from tests.kubernetes.test_sandboxes import has_agent_sandbox
from tests.proofs import write

pytestmark = [pytest.mark.proof, pytest.mark.timeout(0)]

Settings = dict[str, Any]


async def middle(count: int, work: Callable[[], Awaitable[object]]) -> float:
    """Return the median of the seconds that the work takes."""
    taken = []
    for _ in range(count):
        begun = time.perf_counter()
        await work()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


async def cold_and_claimed(settings: Settings, directory: Path) -> tuple[float, float]:
    """Return the seconds of a cold creation and of a claim from the pool, each to the first command."""
    configuration: dict[str, Any] = {
        "state_dir": str(directory / "s"), "run_dir": str(directory / "r"), "provider": "kubernetes", "store": "memory",
        "providers": {"kubernetes": settings},
    }  # fmt: skip

    async def creation(hutch: Hutch) -> None:
        box = await hutch.create()
        assert (await box.exec("true")).ok
        boxes.append(box)

    boxes: list[Any] = []
    async with Hutch(**configuration) as hutch:
        cold = await middle(5, lambda: creation(hutch))
        await asyncio.gather(*(box.destroy() for box in boxes))
    boxes.clear()
    async with Hutch(**configuration, pool={"default": 5}) as hutch:
        async with asyncio.timeout(300):
            while sum(hutch._keeper.pool.waiting().values()) < 5:
                await asyncio.sleep(0.5)
        claimed = await middle(5, lambda: creation(hutch))
        assert {await shown_owner(settings, box.id) for box in boxes} == {LOCAL_OWNER}
        await asyncio.gather(*(box.destroy() for box in boxes))
    return cold, claimed


async def shown_owner(settings: Settings, box_id: str) -> str:
    """Return the owner that the labels of a box's Pod name."""
    provider = provider_of(settings)
    try:
        pod = await provider.cluster.get("Pod", manifests.name(box_id))
        return str(pod["metadata"]["labels"][manifests.OWNER])
    finally:
        await provider.close()


async def exec_times(settings: Settings) -> tuple[float, float]:
    """Return the seconds of `true` through the direct lane, and through the cluster's own exec API."""
    provider = provider_of(settings, lane="direct")
    ordered = order(image=f"oci:{settings['image']}")
    try:
        box = await provider.create(ordered, provider.plan(ordered))
        command = Command(command=("true",), timeout_sec=30.0)
        direct = await middle(100, lambda: box.run(command))
        client = provider.cluster.client
        by_api = await middle(20, lambda: client.exec(box.pod, container="box", command=["true"], stdout=True))
        await box.close()
        return direct, by_api
    finally:
        await provider.destroy(provider.plan(ordered))
        await provider.close()


async def manifests_applied(settings: Settings, directory: Path) -> list[str]:
    """Apply deploy/kubernetes/hutch.yaml, let a box live with the account it makes, and return the objects' kinds."""
    async with deployed(settings) as deployment:
        await live_once(await deployment.account(directory))
        return deployment.applied


async def test_the_whole_kit_and_the_ratios(cluster_settings: Settings, tmp_path: Path) -> None:
    """The conformance kit passes, with persistent boxes where there is a storage class; the committed manifests are
    applied; a claimed Pod is at least 5 times faster than a cold one, and a command through the direct lane at least 10
    times faster than the cluster's exec API."""
    image = f"oci:{cluster_settings['image']}"
    report = await kit.run(lambda: provider_of(cluster_settings), image=image, patience=120.0, progress=print)
    assert report.ok, report.failed
    applied = await manifests_applied(cluster_settings, tmp_path)
    cold, claimed = await cold_and_claimed(cluster_settings, tmp_path)
    direct, by_api = await exec_times(cluster_settings)
    provider = provider_of(cluster_settings)
    version = await provider.cluster.version()
    left = await provider.cluster.objects("Pod", {manifests.BOX: None})
    await provider.close()
    assert [each for each in left if not each["metadata"].get("deletionTimestamp")] == []
    write(
        "kubernetes",
        cluster=version,
        passed=report.count(Outcome.PASSED),
        refused=report.count(Outcome.REFUSED),
        objects_applied=applied,
        persistent=bool(cluster_settings["storage_class"]),
        agent_sandbox=await has_agent_sandbox(cluster_settings),
        cold_ms=round(cold * 1000),
        claimed_ms=round(claimed * 1000, 1),
        claim_ratio=round(cold / claimed, 1),
        exec_direct_ms=round(direct * 1000, 2),
        exec_api_ms=round(by_api * 1000, 1),
        exec_ratio=round(by_api / direct, 1),
    )
    assert cold >= 5 * claimed
    assert by_api >= 10 * direct
