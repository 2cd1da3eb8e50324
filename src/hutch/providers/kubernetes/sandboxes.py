"""Boxes as agent-sandbox's `Sandbox` resources: its controller makes the Pod, which is the one that we would make.

The Sandbox has the box's name, and its controller gives that name to the Pod. Two things differ from a Pod of our own.
Labels belong to the Sandbox, whose template the controller copies to the Pod. And the controller makes a deleted Pod
again, as an empty one: a box is its Pod's uid, not its name.

`SandboxClaim` and `SandboxWarmPool` are not used: their Pods are copies of one template, and every box has a key and a
network policy of its own. Hutch's pool holds whole Sandboxes.
"""

from hutch.errors import HutchError, NotFound, Unavailable
from hutch.providers.kubernetes.cluster import Cluster
from hutch.providers.kubernetes.manifests import Manifest

WORKLOAD = "workload"
"""The key of an instance record that says that the box is a Sandbox."""
PLACES = ("/metadata", "/spec/podTemplate/metadata")
"""Where a Sandbox has labels: its own, and those of its Pod."""


def manifest(pod: Manifest, api: str) -> Manifest:
    """Return the Sandbox whose Pod is this one."""
    metadata = pod["metadata"]
    shown = {"labels": metadata["labels"], "annotations": metadata["annotations"]}
    return {
        "apiVersion": api,
        "kind": "Sandbox",
        "metadata": {"name": metadata["name"], **shown},
        "spec": {"podTemplate": {"metadata": shown, "spec": pod["spec"]}},
    }


async def explain(cluster: Cluster, name: str, error: Unavailable) -> HutchError:
    """Return the error of a Sandbox that was not ready in time, with what its controller says about it."""
    try:
        status = (await cluster.get("Sandbox", name)).get("status") or {}
    except NotFound:
        return error
    ready = next((each for each in status.get("conditions") or () if each.get("type") == "Ready"), None)
    if ready is None:
        return Unavailable(
            f"{error.message}; nobody has worked on the Sandbox",
            op=error.op,
            remedy="check that agent-sandbox's controller runs",
        )
    said = f"{ready.get('reason')}: {ready.get('message', '')}"
    return Unavailable(f"{error.message}; the Sandbox says {said}", op=error.op, remedy=error.remedy)
