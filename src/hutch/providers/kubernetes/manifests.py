"""The objects of a box in the cluster, in pure functions, so that the hardening can be read and tested.

A Pod has three containers. `guest` runs first and copies our guest from Hutch's own image into an empty directory.
`box` runs that guest in the box's image, as the box's user. `relay` runs Hutch's image as another user, in a process
namespace of its own: it alone has the box's TLS key and token, so nothing in the box can pose as the keeper, and to the
guest it is a caller from outside.

As in other containers, the disk of a temporary box is memory: an `emptyDir` of medium Memory is a tmpfs whose size the
kernel holds, while one on the node's disk is measured now and then, and ends the whole Pod.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from hutch.model.limits import Limits
from hutch.model.spec import EffectiveSpec, MountMode, NetworkMode, Order, Retention
from hutch.providers.guest_bundle.listener import GUEST_DIR
from hutch.providers.guest_bundle.pack import HOME as BUNDLE_HOME
from hutch.providers.guest_bundle.pack import GuestBundle
from hutch.providers.kubernetes.settings import Settings
from hutch.providers.native.network import addresses

Manifest = dict[str, Any]

BOX = "hutch.dev/box"
KEEPER = "hutch.dev/keeper"
CONFIG = "hutch.dev/config"
"""A digest of the effective spec, by which a changed spec is recognised."""
OWNER = "hutch.dev/owner"
"""A label, empty while the box waits in a pool; and an annotation, because names are not bound to a label's letters."""

PORT = 7301
RELAY_DIR = "/hutch-relay"
"""Where the relay, and nobody else, sees certificate, key and token."""
RELAY_USER = 65532
WORKSPACE, HOME = "/workspace", "/home/user"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
GUEST_MB = 24
RELAY_MB = 64
_BUNDLE_MB = 64
_SHARES = {"/tmp": 1, HOME: 1, WORKSPACE: 2}
"""How the disk of a temporary box is divided: no cluster shows one volume of fixed size in several places."""


def name(box_id: str) -> str:
    """Return the name of every object of a box."""
    return f"hutch-{box_id}"


def labels(order: Order) -> dict[str, str]:
    return {BOX: order.box_id, CONFIG: config_digest(order.spec), **holder(order.owner, order.keeper)}


def holder(owner: str, keeper: str) -> dict[str, str]:
    """Return the labels that say whose box this is and who keeps it: those that change while a box lives."""
    return {OWNER: label_value(owner), KEEPER: label_value(keeper)}


def label_value(name: str) -> str:
    """Return a name as a label may be; one that is too long or has other letters becomes a digest."""
    if re.fullmatch(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?", name):
        return name
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def handover(seen: Mapping[str, str], owner: str, keeper: str, *, places: tuple[str, ...]) -> list[Manifest]:
    """Return the JSON patch that gives an object to another owner or keeper if its labels are still those seen.

    The labels are compared instead of the resourceVersion, which also changes whenever the kubelet reports.
    """
    tests = [
        {"op": "test", "path": _path(places[0], "labels", name), "value": seen[name]}
        for name in (OWNER, KEEPER)
        if name in seen
    ]
    changes = [
        {"op": "add", "path": _path(place, "labels", name), "value": value}
        for place in places
        for name, value in holder(owner, keeper).items()
    ]
    names = [{"op": "add", "path": _path(place, "annotations", OWNER), "value": owner} for place in places]
    return [*tests, *changes, *names]


def _path(place: str, part: str, name: str) -> str:
    return f"{place}/{part}/{name.replace('/', '~1')}"


def config_digest(spec: EffectiveSpec) -> str:
    return hashlib.sha256(spec.shown().to_json()).hexdigest()[:16]


def volume_claims(spec: EffectiveSpec) -> dict[str, str]:
    """Return the mount point of each volume that a persistent box keeps, by the part's name."""
    if spec.retention is not Retention.PERSISTENT:
        return {}
    return {"home": HOME, **({"workspace": WORKSPACE} if _own_workspace(spec) else {})}


def pod(order: Order, settings: Settings, bundle: GuestBundle) -> Manifest:
    """Return the Pod of a box, within the restricted Pod Security Standard."""
    user = settings.user
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name(order.box_id),
            "labels": labels(order),
            "annotations": {OWNER: order.owner, "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
        },
        "spec": {
            "hostname": order.box_id[:12],
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "shareProcessNamespace": False,
            **({"serviceAccountName": settings.service_account} if settings.service_account else {}),
            **({"runtimeClassName": settings.runtime_class} if settings.runtime_class else {}),
            **({"nodeSelector": settings.node_selector} if settings.node_selector else {}),
            "imagePullSecrets": [{"name": each} for each in settings.pull_secrets],
            "securityContext": {
                "runAsNonRoot": True, "runAsUser": user, "runAsGroup": user, "fsGroup": user,
                "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"},
            },
            "initContainers": [_guest_container(settings)],
            "containers": [_box_container(order, settings, bundle), _relay_container(settings)],
            "volumes": _volumes(order),
        },
    }  # fmt: skip


def secret(order: Order, *, certificate: str, key: str, token: str) -> Manifest:
    """Return what only the relay and the keeper know."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name(order.box_id), "labels": labels(order)},
        "type": "Opaque",
        "stringData": {"tls.crt": certificate, "tls.key": key, "token": token},
    }


def network_policy(order: Order) -> Manifest:
    """Return what may reach the box, which is the relay's port, and what the box may reach."""
    egress: list[Manifest] = []
    if order.spec.network is NetworkMode.ON:
        allowed = addresses.parse(order.spec.allow_private)
        refused = [str(each) for each in addresses.refused(addresses.POOL, allowed)]
        egress = [
            {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": refused}}]},
            *({"to": [{"ipBlock": {"cidr": str(each)}}]} for each in allowed),
            {
                "to": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}],
                "ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")],
            },
        ]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name(order.box_id), "labels": labels(order)},
        "spec": {
            "podSelector": {"matchLabels": {BOX: order.box_id}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"ports": [{"protocol": "TCP", "port": PORT}]}],
            "egress": egress,
        },
    }


def claim(order: Order, part: str, settings: Settings) -> Manifest:
    """Return the claim of one volume of a persistent box."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"{name(order.box_id)}-{part}", "labels": labels(order)},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": settings.storage_class,
            "resources": {"requests": {"storage": f"{max(1, order.spec.limits.disk_mb // 2)}Mi"}},
        },
    }


def spill_mb(limits: Limits) -> int:
    """Return the memory for output that fits nowhere else; the guest drops the middle of what is larger."""
    return min(64, max(8, limits.memory_mb // 8))


def disk_shares(spec: EffectiveSpec) -> dict[str, int]:
    """Return the kilobytes of each tmpfs of the box by its mount point."""
    kept = set(volume_claims(spec).values())
    places = {path: share for path, share in _SHARES.items() if path not in kept}
    if not _own_workspace(spec):
        places.pop(WORKSPACE, None)
    total = sum(places.values())
    return {path: max(64, spec.limits.disk_mb * 1024 * share // total) for path, share in places.items()}


def environment(spec: EffectiveSpec, box_id: str) -> dict[str, str]:
    """Return the whole environment of every command."""
    standard = {
        "PATH": PATH, "LANG": "C.UTF-8", "HOME": HOME, "USER": "user", "LOGNAME": "user", "SHELL": "/bin/sh",
        "HOSTNAME": box_id[:12], "TMPDIR": "/tmp",
    }  # fmt: skip
    return standard | spec.env | spec.secrets


# --- parts of the Pod ------------------------------------------------------------------------------------------


def _guest_container(settings: Settings) -> Manifest:
    return {
        "name": "guest",
        "image": settings.guest_image,
        "imagePullPolicy": str(settings.pull),
        "command": ["python3", "-m", "hutch.providers.kubernetes.relay", "unpack", BUNDLE_HOME],
        "securityContext": _locked_down(),
        "resources": _resources(cpu="100m", memory=f"{RELAY_MB}Mi", limit=f"{RELAY_MB * 2}Mi"),
        "volumeMounts": [{"name": "bundle", "mountPath": BUNDLE_HOME}],
    }


def _relay_container(settings: Settings) -> Manifest:
    return {
        "name": "relay",
        "image": settings.guest_image,
        "imagePullPolicy": str(settings.pull),
        "command": ["python3", "-m", "hutch.providers.kubernetes.relay", "serve", GUEST_DIR, RELAY_DIR, str(PORT)],
        "ports": [{"containerPort": PORT, "name": "guest"}],
        "securityContext": {**_locked_down(), "runAsUser": RELAY_USER, "runAsGroup": RELAY_USER},
        "resources": _resources(cpu="10m", memory=f"{RELAY_MB // 2}Mi", limit=f"{RELAY_MB}Mi"),
        "volumeMounts": [
            {"name": "run", "mountPath": GUEST_DIR},
            {"name": "relay", "mountPath": RELAY_DIR, "readOnly": True},
        ],
    }


def _box_container(order: Order, settings: Settings, bundle: GuestBundle) -> Manifest:
    spec = order.spec
    mounts: list[Manifest] = [
        {"name": "bundle", "mountPath": BUNDLE_HOME, "readOnly": True},
        {"name": "run", "mountPath": GUEST_DIR},
    ]
    for path in disk_shares(spec):
        mounts.append({"name": _volume_name(path), "mountPath": path, **_read_only(path, spec)})
    for part, path in volume_claims(spec).items():
        mounts.append({"name": part, "mountPath": path, **_read_only(path, spec)})
    return {
        "name": "box",
        "image": spec.image.removeprefix("oci:"),
        "imagePullPolicy": str(settings.pull),
        "command": bundle.argv("hutch.providers.guest_bundle.boot", GUEST_DIR, "guest"),
        "workingDir": "/",
        # An image may name libraries to be loaded into every program; our guest must load none.
        "env": [{"name": each, "value": ""} for each in ("LD_PRELOAD", "LD_AUDIT")],
        "securityContext": {**_locked_down(), "readOnlyRootFilesystem": spec.read_only_root},
        "resources": _box_resources(spec.limits, settings),
        "volumeMounts": mounts,
    }


def _box_resources(limits: Limits, settings: Settings) -> Manifest:
    """Return the box's limits. Pages of its tmpfs volumes are charged to it, so they are added to its memory."""
    memory = limits.memory_mb + limits.disk_mb + spill_mb(limits) + GUEST_MB
    share = settings.request_share
    return {
        "limits": {
            "cpu": f"{max(10, round(limits.cpus * 1000))}m",
            "memory": f"{memory}Mi",
            "ephemeral-storage": f"{limits.disk_mb + _BUNDLE_MB}Mi",
        },
        "requests": {
            "cpu": f"{max(10, round(limits.cpus * 1000 * share))}m",
            "memory": f"{max(16, round(limits.memory_mb * share))}Mi",
        },
    }


def _volumes(order: Order) -> list[Manifest]:
    spec = order.spec
    volumes: list[Manifest] = [
        {"name": "bundle", "emptyDir": {"sizeLimit": f"{_BUNDLE_MB}Mi"}},
        {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": f"{spill_mb(spec.limits)}Mi"}},
        # Group-readable, because the kubelet gives a secret's files to the Pod's group, and the relay is not in it.
        {"name": "relay", "secret": {"secretName": name(order.box_id), "defaultMode": 0o444}},
    ]
    for path, kilobytes in disk_shares(spec).items():
        limit = f"{kilobytes}Ki"
        volumes.append({"name": _volume_name(path), "emptyDir": {"medium": "Memory", "sizeLimit": limit}})
    for part in volume_claims(spec):
        volumes.append({"name": part, "persistentVolumeClaim": {"claimName": f"{name(order.box_id)}-{part}"}})
    return volumes


def _locked_down() -> Manifest:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _resources(*, cpu: str, memory: str, limit: str) -> Manifest:
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": limit}}


def _read_only(path: str, spec: EffectiveSpec) -> Manifest:
    return {"readOnly": True} if path == WORKSPACE and spec.workspace.mode is MountMode.RO else {}


def _own_workspace(spec: EffectiveSpec) -> bool:
    return spec.workspace.source == "own" and spec.workspace.mode is not MountMode.NONE


def _volume_name(path: str) -> str:
    return path.strip("/").replace("/", "-")
