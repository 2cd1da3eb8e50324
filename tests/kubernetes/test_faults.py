"""What the cluster answers when something is wrong becomes a typed error with a remedy, and nothing is left behind."""

import asyncio
import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hutch.errors import BoxBroken, ConfigError, Conflict, EngineError, NotFound, QuotaExceeded, Refused, Unavailable
from hutch.providers.guest_client.link import Link
from hutch.providers.kubernetes import cluster as cluster_module
from hutch.providers.kubernetes import manifests
from hutch.providers.kubernetes import pods as pod_states
from hutch.providers.kubernetes.cluster import Cluster
from hutch.providers.kubernetes.instance import PodInstance
from hutch.providers.kubernetes.pods import Phase, Pods
from hutch.providers.kubernetes.provider import KubernetesProvider
from hutch.providers.kubernetes.settings import Settings
from tests.kubernetes.api_server import failure, scripted
from tests.kubernetes.orders import order

RECORDED: dict[str, Any] = json.loads(Path(__file__).parents[1].joinpath("fixtures/kubernetes/pods.json").read_bytes())
"""Pods as a real cluster (v1.35.8) showed them."""

SANDBOX_GROUP = {"kind": "APIGroup", "name": "agents.x-k8s.io", "versions": [{"version": "v1beta1"}]}


def provider(kubeconfig: Path, **settings: Any) -> KubernetesProvider:
    made = KubernetesProvider()
    made.configure({"kubeconfig": str(kubeconfig), "guest_image": "hutch:1", "image": "debian:12", **settings})
    return made


def test_recorded_pods_are_understood() -> None:
    """Running, pending, out of memory, evicted and without an image: each state of a real Pod means what it says."""
    phases = {name: pod_states.phase(pod) for name, pod in RECORDED.items()}
    assert phases == {
        "running": Phase.RUNNING, "pending": Phase.STARTING, "image": Phase.STARTING, "oom": Phase.ENDED,
        "evicted": Phase.ENDED,
    }  # fmt: skip
    assert "OOMKilled" in pod_states.reason_of_end(RECORDED["oom"])
    assert "Evicted" in pod_states.reason_of_end(RECORDED["evicted"])
    refused = pod_states.refusal(RECORDED["image"])
    assert isinstance(refused, NotFound) and "ErrImageNeverPull" in refused.message and refused.remedy


async def test_no_cluster(tmp_path: Path) -> None:
    """A cluster that nobody serves, and a kubeconfig that is none, are said so by the probe, with a remedy."""
    nobody = tmp_path / "nobody"
    async with scripted(tmp_path) as (_, path):
        nobody.write_text(path.read_text())
    made = provider(nobody)
    found = await made.probe()
    assert not found.usable and "cannot be reached" in found.reason and found.remedy
    await made.close()
    with pytest.raises(ConfigError, match="cannot be used"):
        Cluster(Settings(kubeconfig=str(tmp_path / "missing")))


async def test_credentials_that_cannot_be_had(tmp_path: Path) -> None:
    """A kubeconfig whose program gives no token is an error of the credentials, with what the program says."""
    async with scripted(tmp_path) as (_, path):
        config = yaml.safe_load(path.read_text())
        run: dict[str, Any] = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "sh"}
        run |= {"args": ["-c", "echo no >&2; exit 3"]}
        config["users"][0]["user"] = {"exec": run}
        path.write_text(yaml.safe_dump(config))
        made = provider(path)
        found = await made.probe()
        assert not found.usable and "returned 3: no" in found.reason and "credentials" in found.remedy
        await made.close()


async def test_a_forbidden_verb_names_its_rule(tmp_path: Path) -> None:
    """Each call that RBAC forbids says which rule would allow it, and the box's other objects are removed."""
    async with scripted(tmp_path) as (script, path):
        script.on("POST", "/networkpolicies", (201, {"kind": "NetworkPolicy", "metadata": {"name": "x"}}))
        script.on("POST", "/secrets", (403, failure(403, "secrets is forbidden")))
        for end in ("secrets", "networkpolicies", "pods"):
            script.on("DELETE", end, 404)
        made = provider(path)
        ordered = order()
        with pytest.raises(Refused) as caught:
            await made.create(ordered, made.plan(ordered))
        assert 'resources ["secrets"], verbs ["create"]' in caught.value.remedy
        deleted = {asked.split("/")[-2] for method, asked in script.asked if method == "DELETE"}
        assert deleted == {"pods", "secrets", "networkpolicies"}
        await made.close()


def named(kind: str) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": "p"}}


async def test_a_forbidden_watch_ends_the_creation(tmp_path: Path) -> None:
    """Without the right to watch, a creation does not wait for news that never comes: it is refused with the rule."""
    async with scripted(tmp_path) as (script, path):
        script.on("WATCH", "/pods", 403)
        cluster = Cluster(Settings(kubeconfig=str(path)))
        pods = Pods(cluster, "keeper-1")
        with pytest.raises(Refused) as caught:
            await pods.wait_for_running("p", 60)
        assert 'verbs ["watch"]' in caught.value.remedy
        await pods.close()
        await cluster.close()


async def test_a_namespace_quota_is_a_quota(tmp_path: Path) -> None:
    """The namespace's ResourceQuota answers 403 too, and no rule of RBAC would help."""
    async with scripted(tmp_path) as (script, path):
        script.on("POST", "/pods", (403, failure(403, "exceeded quota: compute, requested: pods=1")))
        cluster = Cluster(Settings(kubeconfig=str(path)))
        with pytest.raises(QuotaExceeded) as caught:
            await cluster.create(named("Pod"))
        assert "ResourceQuota" in caught.value.remedy
        await cluster.close()


async def test_what_the_clusters_rules_refuse_needs_no_right(tmp_path: Path) -> None:
    """Pod Security, a LimitRange and a namespace that ends answer 403 like RBAC: the error names no right for them."""
    said = (
        'pods "p" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false',
        'pods "p" is forbidden: maximum memory usage per Container is 1Gi, but limit is 2Gi',
        'pods "p" is forbidden: unable to create new content in namespace boxes because it is being terminated',
    )
    forbidden = 'pods is forbidden: User "ann" cannot create resource "pods" in API group "" in the namespace "boxes"'
    async with scripted(tmp_path) as (script, path):
        cluster = Cluster(Settings(kubeconfig=str(path)))
        for message in (*said, forbidden):
            script.on("POST", "/pods", (403, failure(403, message)))
            with pytest.raises(Refused, match="forbidden") as caught:
                await cluster.create(named("Pod"))
            assert ("verbs" in caught.value.remedy) == (message == forbidden), message
        await cluster.close()


@pytest.mark.parametrize("status", [409, 422])
async def test_a_claim_that_came_late_is_a_conflict(tmp_path: Path, status: int) -> None:
    """A patch whose tests do not hold any more is answered by 409 or 422: somebody else has the box (lesson 3)."""
    async with scripted(tmp_path) as (script, path):
        script.on("PATCH", "/pods/p", (status, failure(status, "the server rejected our request: test failed")))
        cluster = Cluster(Settings(kubeconfig=str(path)))
        with pytest.raises(Conflict, match="somebody else"):
            await cluster.patch("Pod", "p", manifests.handover({}, "ann", "keeper-1", places=("/metadata",)))
        assert sum(method == "PATCH" for method, _ in script.asked) == 1
        await cluster.close()


async def test_no_server_says_how_long_we_sleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy server may ask for a day's patience: it is asked again before, and then the error passes the time on."""
    monkeypatch.setattr(cluster_module, "_LONGEST_PAUSE", 0.05)
    async with scripted(tmp_path) as (script, path):
        script.on("GET", "/pods/p", (429, failure(429, details={"retryAfterSeconds": 86_400})))
        cluster = Cluster(Settings(kubeconfig=str(path)))
        async with asyncio.timeout(60):
            with pytest.raises(Unavailable) as caught:
                await cluster.get("Pod", "p")
        assert caught.value.retry_after == 86_400 and len(script.asked) == 4
        await cluster.close()


async def test_without_agent_sandbox_its_workload_is_refused(tmp_path: Path) -> None:
    """Boxes as Sandboxes need agent-sandbox's definitions: without them the probe says so, and what to do."""
    async with scripted(tmp_path) as (script, path):
        script.on("POST", "/networkpolicies", (201, {"kind": "NetworkPolicy", "metadata": {"name": "x"}}))
        script.on("POST", "/secrets", (201, {"kind": "Secret", "metadata": {"name": "x"}}))
        made = provider(path, workload="sandbox")
        found = await made.probe()
        assert not found.usable and "agent-sandbox is not installed" in found.reason and "workload" in found.remedy
        await made.close()


async def test_a_sandbox_that_nobody_works_on_says_so(tmp_path: Path) -> None:
    """Where the definitions are installed and no controller runs, no Pod comes: the error names the controller."""
    async with scripted(tmp_path) as (script, path):
        script.on("GET", "/apis/agents.x-k8s.io", SANDBOX_GROUP)
        script.on("POST", "/networkpolicies", (201, {"kind": "NetworkPolicy", "metadata": {"name": "x"}}))
        script.on("POST", "/secrets", (201, {"kind": "Secret", "metadata": {"name": "x"}}))
        script.on("POST", "/sandboxes", (201, {"kind": "Sandbox", "metadata": {"name": "x"}}))
        script.on("WATCH", "/pods", ["silence"])
        script.on("GET", "/events", {"kind": "EventList", "metadata": {}, "items": []})
        made = provider(path, workload="sandbox", start_timeout_sec=0.5)
        ordered = order()
        script.on("GET", f"/sandboxes/{manifests.name(ordered.box_id)}", named("Sandbox"))
        with pytest.raises(Unavailable, match="nobody has worked on the Sandbox") as caught:
            await made.create(ordered, made.plan(ordered))
        assert "controller" in caught.value.remedy and caught.value.retryable
        deleted = [asked.split("/")[-2] for method, asked in script.asked if method == "DELETE"]
        assert deleted[0] == "sandboxes" and set(deleted) == {"sandboxes", "pods", "secrets", "networkpolicies"}
        await made.close()


async def test_a_busy_api_server_is_asked_again(tmp_path: Path) -> None:
    """429 and 503 are repeated a bounded number of times; then the error is retryable."""
    async with scripted(tmp_path) as (script, path):
        pod = {"kind": "Pod", "metadata": {"name": "p"}}
        script.on("GET", "/pods/p", (429, failure(429)), (503, failure(503)), pod)
        cluster = Cluster(Settings(kubeconfig=str(path)))
        assert (await cluster.get("Pod", "p"))["metadata"]["name"] == "p"
        script.on("GET", "/pods/q", (503, failure(503)))
        with pytest.raises(Unavailable) as caught:
            await cluster.get("Pod", "q")
        assert caught.value.retryable and caught.value.remedy
        assert sum(asked.endswith("/pods/q") for _, asked in script.asked) == 4
        await cluster.close()


async def test_a_repeated_creation_is_one(tmp_path: Path) -> None:
    """If the answer to a creation was lost and it is sent again, 409 means that the object is there."""
    async with scripted(tmp_path) as (script, path):
        script.on("POST", "/pods", (409, failure(409, "already exists")))
        script.on("GET", "/pods/p", {"kind": "Pod", "metadata": {"name": "p", "uid": "1"}})
        cluster = Cluster(Settings(kubeconfig=str(path)))
        made = await cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}})
        assert made["metadata"]["uid"] == "1"
        await cluster.close()


@pytest.mark.parametrize("trouble", [410, 500, [], ["silence"]], ids=["gone", "error", "ended", "silent"])
async def test_a_broken_watch_loses_nothing(tmp_path: Path, trouble: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch that is refused (410), breaks, ends or falls silent is made good: the Pod is still seen to run."""
    monkeypatch.setattr(pod_states, "_LOOK_SECONDS", 0.2)
    async with scripted(tmp_path) as (script, path):
        running = {"type": "ADDED", "object": {"apiVersion": "v1", "kind": "Pod", **RECORDED["running"]}}
        after = [running] if trouble != ["silence"] else trouble
        script.on("WATCH", "/pods", trouble, after)
        script.on("GET", "/pods/rec-running", {"apiVersion": "v1", "kind": "Pod", **RECORDED["running"]})
        cluster = Cluster(Settings(kubeconfig=str(path)))
        pods = Pods(cluster, "keeper-1")
        assert pod_states.phase(await pods.wait_for_running("rec-running", 60)) is Phase.RUNNING
        await pods.close()
        await cluster.close()


async def test_a_pod_that_stays_pending_says_why(tmp_path: Path) -> None:
    """No room on any node is a quota that may pass, with the scheduler's own words from the Pod's events."""
    async with scripted(tmp_path) as (script, path):
        pending = {"apiVersion": "v1", "kind": "Pod", **RECORDED["pending"]}
        said = "0/1 nodes are available: 1 Insufficient memory."
        event = {"metadata": {"name": "e"}, "involvedObject": {}, "reason": "FailedScheduling", "message": said}
        script.on("WATCH", "/pods", [{"type": "ADDED", "object": pending}, "silence"])
        script.on("GET", "/events", {"kind": "EventList", "metadata": {}, "items": [event]})
        cluster = Cluster(Settings(kubeconfig=str(path)))
        pods = Pods(cluster, "keeper-1")
        with pytest.raises(QuotaExceeded, match="Insufficient memory") as caught:
            await pods.wait_for_running("rec-pending", 1.0)
        assert caught.value.retryable
        await pods.close()
        await cluster.close()


async def test_a_box_on_a_silent_node_may_come_back(tmp_path: Path) -> None:
    """A node that stops reporting leaves its Pods as they were and marks them not ready: the box is not given up, the
    error names the node and is retryable; once the Pod is deleted, the box is broken."""
    silent = copy.deepcopy(RECORDED["running"])
    ready = next(each for each in silent["status"]["conditions"] if each["type"] == "Ready")
    ready |= {"status": "False"}  # As a real cluster showed it 42 s after its kubelet was stopped, without a reason.
    silent["status"]["podIP"] = "127.0.0.1"  # Nothing listens at the relay's port there.
    async with scripted(tmp_path) as (script, path):
        ordered = order()
        name = manifests.name(ordered.box_id)
        cluster = Cluster(Settings(kubeconfig=str(path)))
        made = provider(path)
        record = made.plan(ordered)
        running = {"apiVersion": "v1", "kind": "Pod", **silent}

        async def unreachable() -> Link:
            raise Unavailable("Pod at 127.0.0.1 cannot be reached: no answer", op="connect")

        box = PodInstance(record, ordered.spec, cluster, unreachable, shown=running, pods=made.pods)
        script.on("GET", f"/pods/{name}", running)
        with pytest.raises(Unavailable, match=r"node \S+ does not answer: Pod not ready") as caught:
            await box.link()
        assert caught.value.retryable and "Node" in caught.value.remedy
        script.on("GET", f"/pods/{name}", 404)
        with pytest.raises(BoxBroken, match="Pod was deleted"):
            await box.link()
        await box.close()
        await made.close()
        await cluster.close()


async def test_an_end_is_noticed_without_being_asked_for(tmp_path: Path) -> None:
    """The watch reports a Pod that ends to its box, so that its links close at once."""
    async with scripted(tmp_path) as (script, path):
        ended = {"apiVersion": "v1", "kind": "Pod", **RECORDED["oom"]}
        script.on("WATCH", "/pods", [{"type": "MODIFIED", "object": ended}, "silence"])
        cluster = Cluster(Settings(kubeconfig=str(path)))
        pods = Pods(cluster, "keeper-1")
        answer = asyncio.Event()
        pods.on_end("rec-oom", answer.set)
        async with asyncio.timeout(30):
            await answer.wait()
        with pytest.raises(EngineError, match="OOMKilled"):
            await pods.wait_for_running("rec-oom", 5)
        await pods.close()
        await cluster.close()
