"""The rights of the servers' account: the provider uses each that the Role grants, and names each that is missing."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import yaml

from hutch.errors import HutchError, Refused
from hutch.model.spec import Retention
from hutch.providers.kubernetes import manifests
from hutch.providers.kubernetes import provider as provider_module
from hutch.providers.kubernetes.cluster import Cluster
from hutch.providers.kubernetes.provider import KubernetesProvider
from hutch.providers.kubernetes.settings import Settings
from tests.kubernetes.api_server import failure, scripted
from tests.kubernetes.orders import order
from tests.kubernetes.test_faults import RECORDED, SANDBOX_GROUP, named

PLAIN = Path(__file__).parents[2] / "deploy" / "kubernetes" / "hutch.yaml"
KINDS = {
    "pods": "Pod", "secrets": "Secret", "persistentvolumeclaims": "PersistentVolumeClaim",
    "networkpolicies": "NetworkPolicy", "sandboxes": "Sandbox",
}  # fmt: skip
SANDBOX_RIGHTS = {("agents.x-k8s.io", "sandboxes", verb) for verb in ("create", "get", "list", "patch", "delete")}
Right = tuple[str, str, str]


def granted() -> set[Right]:
    """Return API group, resource and verb of each right of the committed Role."""
    (role,) = [each for each in yaml.safe_load_all(PLAIN.read_text()) if each and each["kind"] == "Role"]
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


async def opened(cluster: Cluster) -> None:
    async with cluster.exec("p", "relay", ["true"]):
        pass


def call(resource: str, verb: str) -> Callable[[Cluster], Awaitable[object]]:
    """Return the cluster's call that needs this right."""
    kind = KINDS.get(resource, "")
    return {
        "create": lambda cluster: cluster.create(named(kind)),
        "get": lambda cluster: cluster.get(kind, "p"),
        "list": lambda cluster: cluster.objects(kind, {"a": None}),
        "patch": lambda cluster: cluster.patch(kind, "p", []),
        "delete": lambda cluster: cluster.delete(kind, "p"),
        "watch": lambda cluster: anext(cluster.watch({"a": "b"})),
        "get pods/exec": opened,
        "list events": lambda cluster: cluster.events("p"),
    }[verb if kind else f"{verb} {resource}"]


LOG, EXEC = ("", "pods/log", "get"), ("", "pods/exec", "create")
"""Without the first an error has fewer words; the second is asked for by a WebSocket's GET too, which is tested."""


async def test_each_right_that_is_missing_is_named(tmp_path: Path) -> None:
    """Whatever RBAC forbids, the remedy is the rule as a Role has it, and the call is not repeated."""
    async with scripted(tmp_path) as (script, path):
        script.on("GET", "/apis/agents.x-k8s.io", SANDBOX_GROUP)
        for method in ("POST", "GET", "PATCH", "DELETE", "WATCH"):
            script.on(method, "", 403)
        cluster = Cluster(Settings(kubeconfig=str(path)))
        for group, resource, verb in sorted((granted() | SANDBOX_RIGHTS) - {LOG, EXEC}):
            script.asked.clear()
            with pytest.raises(Refused) as caught:
                await call(resource, verb)(cluster)
            rule = f'apiGroups ["{group}"], resources ["{resource}"], verbs ["{verb}"]'
            assert rule in caught.value.remedy and not caught.value.retryable, (rule, caught.value)
            assert sum("/namespaces/" in asked for _, asked in script.asked) == 1, rule
        await cluster.close()


async def test_a_log_that_may_not_be_read_names_its_rule(tmp_path: Path) -> None:
    """A container that ended while its Pod started is an error of its own; the missing right stands in its words."""
    async with scripted(tmp_path) as (script, path):
        script.on("GET", "/log", 403)
        cluster = Cluster(Settings(kubeconfig=str(path)))
        assert 'resources ["pods/log"], verbs ["get"]' in await cluster.log("p", "box")
        await cluster.close()


async def test_the_role_grants_exactly_what_the_provider_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Least rights: the requests of a box's whole life, of its failures and of the sweep need each right of the Role,
    and no other."""
    monkeypatch.setattr(provider_module, "_LONG_AGO_SECONDS", 0.0)
    async with scripted(tmp_path) as (script, path):
        images = {"guest_image": "hutch:1", "image": "debian:12"}
        await _live(script, {"kubeconfig": str(path), "storage_class": "fast", "lane": "exec", **images})
        assert {_right(*each) for each in script.asked_with_query} - {None} == granted() - {EXEC}


async def _live(script: Any, settings: dict[str, Any]) -> None:
    """Ask for everything that the provider asks a cluster for. No guest answers, so that each creation fails late."""
    provider = KubernetesProvider()
    provider.configure(settings)
    ordered = order(retention=Retention.PERSISTENT)
    name = manifests.name(ordered.box_id)
    pod = {"apiVersion": "v1", "kind": "Pod", **RECORDED["running"]}
    pod = {**pod, "metadata": {**pod["metadata"], "name": name, "labels": manifests.labels(ordered)}}
    for plural in KINDS:
        script.on("POST", f"/{plural}", (201, named(KINDS[plural])))
        script.on("GET", f"/{plural}/{name}", {"apiVersion": "v1", **named(KINDS[plural])})
    script.on("GET", f"/pods/{name}", pod)
    script.on("WATCH", "/pods", [{"type": "ADDED", "object": pod}, "silence"])
    planned = provider.plan(ordered)
    await _failing(provider.create(ordered, planned))  # The guest does not answer: the box is undone.
    script.on("POST", "/networkpolicies", (409, failure(409, "already exists")))
    script.on("GET", f"/networkpolicies/{name}", {"apiVersion": "networking.k8s.io/v1", **named("NetworkPolicy")})
    claims = manifests.volume_claims(ordered.spec)
    for part in claims:
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": f"{name}-{part}"}}
        script.on("GET", f"/persistentvolumeclaims/{name}-{part}", claim)
    await _failing(provider.restore(ordered, planned))
    ended = {**pod, "status": RECORDED["oom"]["status"]}
    script.on("GET", f"/pods/{name}", ended)
    script.on("GET", "/log", {"said": "nothing"})
    script.on("GET", "/events", {"kind": "EventList", "metadata": {}, "items": []})
    for plural, kind in KINDS.items():
        old = {"metadata": {"name": "old", "labels": {manifests.BOX: "b" * 20}, "creationTimestamp": _LONG_AGO}}
        items = [ended if plural == "pods" else {"kind": kind, **old}]
        script.on("GET", f"/{plural}", {"kind": f"{kind}List", "metadata": {}, "items": items})
    await provider.list()
    await provider.sweep()
    await provider.cluster.log(name, "box")
    await provider.cluster.events(name)
    script.on("PATCH", f"/pods/{name}", pod)
    await provider.cluster.patch("Pod", name, manifests.handover({}, "ann", "keeper-2", places=("/metadata",)))
    await provider.close()


_LONG_AGO = "2020-01-01T00:00:00Z"


async def _failing(work: Awaitable[object]) -> None:
    with pytest.raises(HutchError):
        await work


def _right(method: str, path: str, query: str) -> Right | None:
    """Return the right that the API server checks for a request; None for those that every account has."""
    if "/namespaces/" not in path:
        return None
    group = "" if path.startswith("/api/v1/") else path.split("/")[2]
    resource, _, rest = path.split("/namespaces/")[1].partition("/")[2].partition("/")
    name, _, part = rest.partition("/")
    if "watch" in parse_qs(query):
        return group, resource, "watch"
    verbs = {"POST": "create", "PATCH": "patch", "DELETE": "delete", "GET": "get" if name else "list"}
    return group, f"{resource}/{part}" if part else resource, verbs[method]
