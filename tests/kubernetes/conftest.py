"""A real cluster, where one is named: HUTCH_TEST_KUBECONFIG, with a box's image and Hutch's own loaded into it."""

import os
from typing import Any

import pytest

from hutch.providers.kubernetes.provider import KubernetesProvider

VARIABLES = {
    "kubeconfig": "HUTCH_TEST_KUBECONFIG",
    "image": "HUTCH_TEST_KUBE_IMAGE",
    "guest_image": "HUTCH_TEST_KUBE_GUEST_IMAGE",
    "namespace": "HUTCH_TEST_KUBE_NAMESPACE",
}


@pytest.fixture
def cluster_settings() -> dict[str, Any]:
    """The provider's table for the cluster that the environment names."""
    missing = [name for name in VARIABLES.values() if not os.environ.get(name)]
    if missing:
        pytest.skip(f"needs a real cluster: set {', '.join(missing)}")
    storage = os.environ.get("HUTCH_TEST_KUBE_STORAGE_CLASS", "")
    return {key: os.environ[name] for key, name in VARIABLES.items()} | {"pull": "Never", "storage_class": storage}


def provider_of(settings: dict[str, Any], **changes: Any) -> KubernetesProvider:
    provider = KubernetesProvider()
    provider.configure({**settings, **changes})
    return provider
