"""The objects of a box, against the API's own schemas and the restricted Pod Security Standard."""

import re

import kubernetes_validate
import pytest

from hutch.errors import ConfigError
from hutch.model.spec import MountMode, NetworkMode, Order, Retention, Workspace
from hutch.providers.guest_bundle.pack import guest_bundle
from hutch.providers.kubernetes import manifests, settings
from hutch.providers.kubernetes.certificates import new_keys
from hutch.providers.kubernetes.manifests import Manifest
from tests.kubernetes.orders import online, order

SETTINGS = settings.Settings(guest_image="hutch:1", image="debian:12", storage_class="fast", runtime_class="gvisor")
VERSION = "1.35"


def objects(ordered: Order) -> list[Manifest]:
    keys = new_keys("box")
    return [
        manifests.pod(ordered, SETTINGS, guest_bundle()),
        manifests.secret(ordered, certificate=keys.certificate, key=keys.key, token=keys.token),
        manifests.network_policy(ordered),
        *(manifests.claim(ordered, part, SETTINGS) for part in manifests.volume_claims(ordered.spec)),
    ]


@pytest.mark.parametrize(
    "ordered",
    [
        order(),
        online(allow_private=("10.1.0.0/16", "192.168.7.7")),
        order(retention=Retention.PERSISTENT),
        order(read_only_root=False, workspace=Workspace(mode=MountMode.RO)),
        order(workspace=Workspace(mode=MountMode.NONE)),
    ],
    ids=["plain", "network", "persistent", "writable", "no workspace"],
)
def test_every_object_is_valid(ordered: Order) -> None:
    """Pod, Secret, NetworkPolicy and claims pass the API's schemas strictly: no unknown field, no wrong type."""
    for each in objects(ordered):
        kubernetes_validate.validate(each, VERSION, strict=True)


def test_a_pod_is_restricted() -> None:
    """Every container keeps the restricted Pod Security Standard, and no token of the cluster is mounted."""
    spec = manifests.pod(order(), SETTINGS, guest_bundle())["spec"]
    assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    for each in (*spec["initContainers"], *spec["containers"]):
        context = each["securityContext"]
        assert context["allowPrivilegeEscalation"] is False, each["name"]
        assert context["capabilities"] == {"drop": ["ALL"]}, each["name"]
        assert "privileged" not in context, each["name"]
    assert all("hostPath" not in volume for volume in spec["volumes"])


def test_only_the_relay_sees_the_keys() -> None:
    """The box's container mounts neither the secret nor anything that the relay alone may read (lesson 31)."""
    spec = manifests.pod(order(secrets={"PASSWORD": "s3cret"}), SETTINGS, guest_bundle())["spec"]
    mounts = {each["name"]: {mount["name"] for mount in each["volumeMounts"]} for each in spec["containers"]}
    assert "relay" in mounts["relay"] and "relay" not in mounts["box"]
    users = {each["name"]: each["securityContext"].get("runAsUser") for each in spec["containers"]}
    assert users["relay"] not in (None, SETTINGS.user)
    assert "s3cret" not in str(spec)


def test_limits_reach_the_pod() -> None:
    """Processors and memory are the container's limits; tmpfs pages count as memory and are added to it (B17)."""
    ordered = order(cpus=0.5, memory_mb=256, disk_mb=100)
    spec = manifests.pod(ordered, SETTINGS, guest_bundle())["spec"]
    box = spec["containers"][0]
    assert box["resources"]["limits"]["cpu"] == "500m"
    assert int(box["resources"]["limits"]["memory"].removesuffix("Mi")) >= 256 + 100
    disks = [each["emptyDir"] for each in spec["volumes"] if each["name"] in ("workspace", "tmp", "home-user")]
    assert sum(int(each["sizeLimit"].removesuffix("Ki")) for each in disks) <= 100 * 1024
    assert {each["medium"] for each in disks} == {"Memory"}


def test_one_allowed_address_is_a_range() -> None:
    """An address without a mask is written as the cluster wants it: as a range of one."""
    rules = manifests.network_policy(online(allow_private=("192.168.7.7",)))["spec"]["egress"]
    assert rules[1] == {"to": [{"ipBlock": {"cidr": "192.168.7.7/32"}}]}


def test_network_off_lets_nothing_out() -> None:
    """With network off the policy has no egress rule; with network on, private ranges are excepted (lesson 28)."""
    assert manifests.network_policy(order())["spec"]["egress"] == []
    rules = manifests.network_policy(online(allow_private=("10.0.0.0/8",)))["spec"]["egress"]
    block = rules[0]["to"][0]["ipBlock"]
    assert block["cidr"] == "0.0.0.0/0" and "169.254.0.0/16" in block["except"] and "10.0.0.0/8" not in block["except"]
    assert {"224.0.0.0/4", "192.0.0.0/24", "198.18.0.0/15"} <= set(block["except"]), "the native engine's"
    assert order().spec.network is NetworkMode.OFF


def test_labels_fit_the_clusters_rules() -> None:
    """Owner, keeper and configuration are on the Pod; names that no label can hold become an annotation or a digest."""
    ordered = order(owner="Ann Müller <ann@example.org>").but(keeper="k" * 80)
    metadata = manifests.pod(ordered, SETTINGS, guest_bundle())["metadata"]
    for value in metadata["labels"].values():
        assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", value)
    assert metadata["annotations"][manifests.OWNER] == "Ann Müller <ann@example.org>"
    assert metadata["labels"][manifests.CONFIG] != manifests.labels(order(memory_mb=65))[manifests.CONFIG]


@pytest.mark.parametrize(
    "table", [{"isolation": "strong"}, {"user": 0}, {"request_share": 2.0}, {"lane": "fast"}, {"kubeconfg": "x"}]
)
def test_a_wrong_setting_is_an_error(table: dict[str, object]) -> None:
    """A wrong key or value is refused with its name, not defaulted (P17)."""
    with pytest.raises(ConfigError, match=next(iter(table))):
        settings.read("kubernetes", table)
