"""deploy/helm and deploy/kubernetes: rendered by real helm, valid for the API, and true to what the code calls."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from hutch.config import Config
from hutch.providers.kubernetes import settings
from hutch.providers.kubernetes.cluster import KINDS, SANDBOXES, rule
from tests.server.conftest import client as client
from tests.server.conftest import server as server
from tests.server.serving import Client, Server

TREE = Path(__file__).parents[2]
CHART = TREE / "deploy" / "helm" / "hutch"
PLAIN = TREE / "deploy" / "kubernetes" / "hutch.yaml"
VALUES = ("values.yaml", "values-laptop.yaml", "values-production.yaml")


def helm(*arguments: str) -> str:
    program = shutil.which("helm", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin")
    if program is None:
        pytest.skip("helm is not installed")
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rendered(values: str, *options: str) -> list[dict[str, Any]]:
    text = helm("template", "hutch", str(CHART), "--namespace", "hutch", "--values", str(CHART / values), *options)
    return [each for each in yaml.safe_load_all(text) if each]


@pytest.mark.parametrize("values", VALUES)
def test_every_rendered_object_is_valid(values: str) -> None:
    """With each of the value files helm renders objects that the API's schemas accept strictly."""
    objects = rendered(values)
    for each in objects:
        if each["kind"] != "ServiceMonitor":  # a resource of the Prometheus operator, not of the API itself
            kubernetes_validate.validate(each, "1.35", strict=True)
    kinds = {each["kind"] for each in objects}
    assert {"Deployment", "Service", "Role", "RoleBinding", "ServiceAccount", "ConfigMap"} <= kinds
    assert ("ServiceMonitor" in kinds) == (values == "values-production.yaml")


def test_the_plain_manifests_are_the_rendered_chart() -> None:
    """What `kubectl apply` gets is what helm makes of the default values."""
    assert [each for each in yaml.safe_load_all(PLAIN.read_text()) if each] == rendered("values.yaml")


@pytest.mark.parametrize("values", VALUES)
def test_the_servers_configuration_is_ours(values: str, tmp_path: Path) -> None:
    """Hutch itself reads the rendered hutch.toml, and the provider its table."""
    config = next(each for each in rendered(values) if each["kind"] == "ConfigMap" and "hutch.toml" in each["data"])
    file = tmp_path / "hutch.toml"
    file.write_text(config["data"]["hutch.toml"])
    loaded = Config.load(file, environ={}, cwd=tmp_path)
    assert loaded.provider == "kubernetes"
    table = tomllib.loads(file.read_text())["providers"]["kubernetes"]
    assert settings.read("kubernetes", table).guest_image == "hutch:0.1.0"


def test_the_role_grants_what_the_provider_calls() -> None:
    """Least rights: each kind of object with the verbs of the provider's calls, no more kinds, nothing cluster-wide."""
    objects = rendered("values.yaml")
    assert not {each["kind"] for each in objects} & {"ClusterRole", "ClusterRoleBinding"}
    role = next(each for each in objects if each["kind"] == "Role")
    granted: dict[tuple[str, str], set[str]] = {}
    for each in role["rules"]:
        granted |= {(group, name): set(each["verbs"]) for group in each["apiGroups"] for name in each["resources"]}
    for kind in KINDS:
        group, name = re.findall(r'\["([^"]*)"\]', rule("create", kind))[:2]
        assert {"create", "get", "delete", "list"} <= granted.pop((group, name)), kind
    assert set(granted) == {("", "pods/exec"), ("", "pods/log"), ("", "events")}
    assert all("*" not in verbs for verbs in granted.values())


def test_sandboxes_are_granted_where_boxes_are_sandboxes() -> None:
    """With boxes.workload=sandbox the configuration says so, and the Role has the provider's calls on Sandboxes."""
    objects = rendered("values.yaml", "--set", "boxes.workload=sandbox")
    config = next(each for each in objects if each["kind"] == "ConfigMap")
    assert tomllib.loads(config["data"]["hutch.toml"])["providers"]["kubernetes"]["workload"] == "sandbox"
    role = next(each for each in objects if each["kind"] == "Role")
    (rule,) = [each for each in role["rules"] if each["apiGroups"] == [SANDBOXES]]
    assert rule["resources"] == ["sandboxes"] and set(rule["verbs"]) == {"create", "get", "list", "patch", "delete"}


def test_the_image_has_what_the_servers_configuration_needs() -> None:
    """The image of the Deployment is installed with the extras for the server, PostgreSQL and the cluster."""
    (extras,) = re.findall(r'"/src\[([\w,]+)\]"', (TREE / "deploy" / "Containerfile").read_text())
    assert {"server", "postgres", "kubernetes"} <= set(extras.split(","))


def test_the_server_is_restricted() -> None:
    """Not root, a read-only root, no capability, the default filter."""
    pod = next(each for each in rendered("values.yaml") if each["kind"] == "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    (container,) = pod["containers"]
    context = container["securityContext"]
    assert context["readOnlyRootFilesystem"] is True and context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}


def test_only_the_servers_port_is_open() -> None:
    """A policy selects the server's Pods and lets callers to their port alone, and those alone who are named; the
    account's token is mounted where the API is called, and nowhere by default."""
    caller = {"namespaceSelector": {"matchLabels": {"team": "bots"}}}
    plain = rendered("values.yaml")
    named = rendered("values.yaml", "--set-json", f"networkPolicy.from={json.dumps([caller])}")
    policies = [next(each for each in some if each["kind"] == "NetworkPolicy")["spec"] for some in (plain, named)]
    pod = next(each for each in plain if each["kind"] == "Deployment")["spec"]["template"]
    ports = [{"protocol": "TCP", "port": pod["spec"]["containers"][0]["ports"][0]["name"]}]
    assert [each["ingress"] for each in policies] == [[{"ports": ports}], [{"ports": ports, "from": [caller]}]]
    assert policies[0]["podSelector"]["matchLabels"] == pod["metadata"]["labels"]
    (account,) = [each for each in plain if each["kind"] == "ServiceAccount"]
    assert account["automountServiceAccountToken"] is False and pod["spec"]["automountServiceAccountToken"] is True
    without = rendered("values.yaml", "--set", "networkPolicy.enabled=false")
    assert not [each for each in without if each["kind"] == "NetworkPolicy"]


def test_every_query_names_a_metric_that_is_exported(server: Server, client: Client) -> None:
    """Each query of the Grafana dashboard uses only metrics that /metrics describes."""
    dashboard = json.loads((CHART / "dashboard.json").read_bytes())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    used = {name for query in queries for name in re.findall(r"\bhutch_[a-z_]+", query)}
    described = set(re.findall(r"^# TYPE (\w+) ", client.call("GET", "/metrics").body.decode(), re.M))
    exported = described | {f"{name}_bucket" for name in described}
    assert len(used) > 10 and used <= exported, used - exported
