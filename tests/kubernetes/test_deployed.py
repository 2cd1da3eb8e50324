"""The committed manifests on a real API server: every object is taken, and the account may do what boxes need."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from hutch import Hutch
from hutch.errors import HutchError, Refused
from hutch.providers.base import Command
from tests.keeper.postgres_server import database as database
from tests.keeper.postgres_server import postgres as postgres
from tests.kubernetes.conftest import provider_of
from tests.kubernetes.deployed import deployed, reachable
from tests.kubernetes.orders import order

Settings = dict[str, Any]


async def live_once(settings: Settings, **changes: Any) -> None:
    """Make a box, use it, give it to another owner, find it again, sweep, and destroy it."""
    provider = provider_of(settings, **changes)
    ordered = order(image=f"oci:{settings['image']}")
    try:
        box = await provider.create(ordered, provider.plan(ordered))
        await box.assign(owner="ben", keeper="keeper-2")
        again = await provider.attach(box.record, box.spec)
        assert (await again.run(Command(command="echo $((6*7))", timeout_sec=30.0))).stdout == "42\n"
        assert ordered.box_id in {each.box_id for each in await provider.list()}
        await provider.sweep()
        await asyncio.gather(box.close(), again.close())
    finally:
        await provider.destroy(provider.plan(ordered))
        await provider.close()


async def test_the_manifests_are_applied_and_their_account_suffices(cluster_settings: Settings, tmp_path: Path) -> None:
    """The API server takes every object; the servers' Pods pass the restricted standard; with the account's own token
    a box lives its whole life by both lanes; and without one verb, the error names the rule that is missing."""
    async with deployed(cluster_settings) as deployment:
        account = await deployment.account(tmp_path)
        for lane in ("direct", "exec"):
            await live_once(account, lane=lane)
        async with asyncio.timeout(60):
            while len(await deployment.server_pods()) < 2:
                await asyncio.sleep(0.5)
        for resource, verb, changes in (
            ("pods", "watch", {}),
            ("pods", "patch", {}),
            ("pods/exec", "get", {"lane": "exec"}),
            ("networkpolicies", "create", {}),
        ):
            await deployment.apply()
            await deployment.take_away(resource, verb)
            caught = await refusal(account, **changes)
            assert f'resources ["{resource}"], verbs ["{verb}"]' in caught.remedy, caught


async def test_the_servers_of_the_deployment_make_boxes(cluster_settings: Settings, database: str) -> None:
    """The Deployment's own image starts with PostgreSQL under the restricted standard, with its account alone; both
    servers become ready, and a box that one has made is used through the other."""
    host = os.environ.get("HUTCH_TEST_KUBE_HOST")
    if not host:
        pytest.skip(
            "needs the images of deploy/kubernetes/hutch.yaml in the cluster, and HUTCH_TEST_KUBE_HOST: this machine's "
            "address as Pods see it"
        )
    async with reachable(database, host) as store, deployed(cluster_settings, store) as deployment:
        async with asyncio.timeout(300):
            one, two = await deployment.wait_for_servers()
        key = await deployment.first_key()
        async with Hutch(one, key=key) as here, Hutch(two, key=key) as there:
            box = await here.create()
            taken = await there.attach(box.id, takeover=True)
            assert (await taken.exec("echo $((6*7))")).stdout == "42\n"
            await there.destroy(box.id)
            assert await here.boxes() == ()


async def refusal(settings: Settings, **changes: Any) -> HutchError:
    """Return the error of a life without some right. The cluster may take a moment until it knows its new rules."""
    for _ in range(5):
        try:
            await live_once(settings, **changes)
        except Refused as error:
            return error
    pytest.fail("nothing was refused")
