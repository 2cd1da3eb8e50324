"""The table `[providers.kubernetes]` of the configuration."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from hutch.errors import ConfigError
from hutch.providers.base import read_settings


class LaneChoice(StrEnum):
    """The way to the guest of a box."""

    AUTO = "auto"
    """The Pod's address is tried first, then the cluster's exec API."""
    DIRECT = "direct"
    EXEC = "exec"


class Workload(StrEnum):
    """The object that a box is in the cluster."""

    POD = "pod"
    SANDBOX = "sandbox"
    """A Sandbox of agent-sandbox (agents.x-k8s.io), whose controller makes the Pod."""


class PullPolicy(StrEnum):
    IF_NOT_PRESENT = "IfNotPresent"
    ALWAYS = "Always"
    NEVER = "Never"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one cluster."""

    kubeconfig: str = ""
    """The kubeconfig file. If empty: the Pod's own service account, then KUBECONFIG, then ~/.kube/config."""
    context: str = ""
    """The context of that file; empty for its current one."""
    namespace: str = ""
    """The namespace of the boxes; empty for the context's own."""
    image: str = ""
    """The image of boxes whose caller names none, such as "debian:12"."""
    guest_image: str = ""
    """Hutch's own image, from which a Pod gets the guest and the relay beside it (deploy/Containerfile)."""
    workload: Workload = Workload.POD
    pull: PullPolicy = PullPolicy.IF_NOT_PRESENT
    pull_secrets: tuple[str, ...] = ()
    """Names of the image pull secrets of the namespace."""
    runtime_class: str = ""
    """The RuntimeClass of boxes, such as gvisor or kata; empty for the cluster's default."""
    isolation: str = "namespaces"
    """What that RuntimeClass isolates by: namespaces, gvisor or vm. The cluster itself does not say."""
    lane: LaneChoice = LaneChoice.AUTO
    user: int = 1000
    """The uid and gid of the box's user."""
    storage_class: str = ""
    """The StorageClass of persistent boxes' volumes; without one boxes are temporary."""
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    service_account: str = ""
    """The service account of the boxes' Pods. Its token is never mounted."""
    request_share: float = 0.25
    """The share of a box's limits of processors and memory that its Pod requests from the scheduler."""
    start_timeout_sec: float = 120.0
    """Seconds that a Pod may take until it runs, pulls of images included."""


def read(provider: str, table: Mapping[str, object]) -> Settings:
    """Return the settings. Raises ConfigError for a wrong key or value."""
    settings = read_settings(provider, Settings, table)
    wrong = (
        "isolation" if settings.isolation not in ("namespaces", "gvisor", "vm")
        else "user" if not 0 < settings.user < 1 << 31
        else "request_share" if not 0 < settings.request_share <= 1
        else "start_timeout_sec" if settings.start_timeout_sec <= 0
        else ""
    )  # fmt: skip
    if wrong:
        raise ConfigError(
            f"provider {provider}: {wrong} cannot be {getattr(settings, wrong)!r}",
            remedy="docs/guides/kubernetes.md lists the settings",
        )
    return settings
