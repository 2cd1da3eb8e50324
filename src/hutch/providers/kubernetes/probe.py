"""What a cluster can do for boxes: read from its answers, then proven by two canary boxes.

Whether NetworkPolicies are enforced is the network plugin's affair, and no API tells. So one canary, whose policy lets
nothing out, tries to reach the relay of the other, whose policy lets everybody in.
"""

import asyncio
from typing import TYPE_CHECKING

from hutch.errors import EngineError, HutchError
from hutch.model.capabilities import Capabilities, Missing, NetworkWall
from hutch.model.limits import EnforcedBy, Grades
from hutch.model.spec import Isolation, NetworkMode
from hutch.providers.base import Command
from hutch.providers.command.provider import canary
from hutch.providers.guest_bundle.pack import guest_bundle
from hutch.providers.kubernetes import manifests
from hutch.providers.kubernetes.settings import Settings

if TYPE_CHECKING:
    from hutch.providers.kubernetes.provider import KubernetesProvider

_REACH = """
import socket, sys
target = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
target.settimeout(3)
try:
    target.connect((sys.argv[1], int(sys.argv[2])))
except TimeoutError:
    print("silent")
except OSError as error:
    print("silent" if error.errno in (1, 13, 101, 113) else "reached")
else:
    print("reached")
"""


async def probe(provider: "KubernetesProvider", settings: Settings) -> Capabilities:
    """Return the cluster's capabilities, or why it cannot be used."""
    try:
        version = await provider.cluster.version()
        walled = await _is_walled(provider, settings)
    except HutchError as error:
        remedy = error.remedy or "check the cluster with `kubectl get pods`"
        return Capabilities(provider=provider.name, usable=False, reason=error.message, remedy=remedy)
    claimed = claims(settings, direct=provider.direct, walled=walled)
    facts = {
        "cluster": f"{version} at {provider.cluster.server}",
        "namespace": provider.cluster.namespace,
        "workload": str(settings.workload),
        "runtime": settings.runtime_class or "the cluster's default",
        "lane": "direct" if provider.direct else "exec",
        "disk": "tmpfs: half of disk_mb for /workspace, a quarter each for the home and /tmp",
    }
    if not walled:
        reason = "the cluster's network plugin does not enforce NetworkPolicy: a box would not be cut off"
        return claimed.but(
            usable=False, reason=reason, remedy="use a plugin that does, such as Calico or Cilium", facts=facts
        )
    return claimed.but(facts=facts)


async def _is_walled(provider: "KubernetesProvider", settings: Settings) -> bool:
    """Make two canary boxes and return whether the policy keeps the first from the second."""
    orders = [canary(provider.name, f"oci:{settings.image or settings.guest_image}") for _ in range(2)]
    try:
        made = await asyncio.gather(
            *(provider.create(order, provider.plan(order)) for order in orders), return_exceptions=True
        )
        for each in made:
            if isinstance(each, BaseException):
                raise each
        first, second = made
        assert not isinstance(first, BaseException) and not isinstance(second, BaseException)
        pod = await provider.cluster.get("Pod", second.pod)
        argv = guest_bundle().python(_REACH, pod["status"]["podIP"], str(manifests.PORT))
        result = await first.run(Command(command=tuple(argv), timeout_sec=20.0))
        await asyncio.gather(first.close(), second.close())
        if not result.ok:
            raise EngineError(f"a canary box could not try its network: {result.stderr.strip()[-300:]}", op="probe")
        return result.stdout.strip() == "silent"
    finally:
        await asyncio.gather(*(provider.destroy(provider.plan(order)) for order in orders))


def claims(settings: Settings, *, direct: bool | None, walled: bool) -> Capabilities:
    missing = [
        Missing(what="images.host", reason="Pods are made of images", remedy="use oci:REF"),
        Missing(what="users.root", reason="Pods are restricted to ordinary users", remedy="leave out user"),
        Missing(what="pause", reason="a Pod cannot be frozen", remedy="stop a persistent box instead"),
        Missing(what="layers", reason="the files of Pods have no checkpoints", remedy="use `hutch box export`"),
        Missing(what="mounts", reason="a Pod runs on another machine", remedy="copy files with `hutch box cp`"),
        Missing(what="uid_range", reason="commands run as the box's user", remedy="leave out user"),
        Missing(
            what="network_wall.namespace",
            reason="a Pod has an interface; a NetworkPolicy refuses what it sends",
            remedy="use another provider where no interface may be there at all",
        ),
    ]
    if not settings.storage_class:
        missing.append(
            Missing(what="persistent", reason="no storage class is named", remedy="set storage_class of the provider")
        )
    if direct is False:
        missing.append(
            Missing(what="lane.direct", reason="Pods cannot be reached from here", remedy="run Hutch in the cluster")
        )
    return Capabilities(
        provider="kubernetes",
        isolation=Isolation(settings.isolation),
        guest=True,
        ports=True,
        durable_jobs=True,
        pty=True,
        watch=True,
        writable_root=True,
        persistent=bool(settings.storage_class),
        networks=(NetworkMode.OFF, NetworkMode.ON) if walled else (),
        network_wall=NetworkWall.POLICY,
        images=("oci",),
        default_image=f"oci:{settings.image}" if settings.image else "",
        grades=Grades(
            cpus=EnforcedBy.CGROUP, memory_mb=EnforcedBy.CGROUP, pids=EnforcedBy.WATCHDOG, disk_mb=EnforcedBy.QUOTA,
            open_files=EnforcedBy.RLIMIT,
        ),
        disk_if_persistent=EnforcedBy.WATCHDOG,
        disk_if_writable_root=EnforcedBy.WATCHDOG,
        missing=tuple(missing),
    )  # fmt: skip
