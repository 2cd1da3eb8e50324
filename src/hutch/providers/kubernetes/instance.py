"""`PodInstance`: the provider contract over the guest of a Pod."""

import asyncio
import errno
import json
from collections.abc import Awaitable, Callable

from hutch.errors import BoxBroken, HutchError, NotFound, Unavailable, Unsupported
from hutch.logs import log
from hutch.model.limits import Limits
from hutch.model.spec import EffectiveSpec, Order
from hutch.providers.base import InstanceRecord
from hutch.providers.guest_bundle.counters import GuestCounters
from hutch.providers.guest_bundle.instance import BundledInstance
from hutch.providers.guest_client.link import Link
from hutch.providers.kubernetes import manifests, sandboxes
from hutch.providers.kubernetes.cluster import Cluster
from hutch.providers.kubernetes.manifests import KEEPER, OWNER, Manifest
from hutch.providers.kubernetes.pods import Phase, Pods, phase, reason_of_end, trouble

_UNHELD = 1 << 50
"""The watchdog's bound of memory where the kernel holds the box's own."""
_END_LOOKS = 20
_LOOK_SECONDS = 0.5


def guest_options(order: Order) -> bytes:
    """Return the options that the guest receives first. Secrets travel only this way."""
    spec = order.spec
    options = {
        "box_id": order.box_id,
        "workdir": spec.workdir,
        "env": manifests.environment(spec, order.box_id),
        "orphan_grace": order.orphan_grace_sec,
        "ttl": spec.ttl_sec,
        "open_files": spec.limits.open_files,
        "watched": watched(spec.limits),
    }
    return json.dumps(options).encode()


def watched(limits: Limits) -> dict[str, int]:
    """Return what the guest's watchdog holds: a Pod has no limit of processes of its own."""
    return {"memory_bytes": _UNHELD, "pids": limits.pids}


class PodInstance(BundledInstance):
    """A box in a Pod."""

    def __init__(
        self,
        record: InstanceRecord,
        spec: EffectiveSpec,
        cluster: Cluster,
        connect: Callable[[], Awaitable[Link]],
        *,
        shown: Manifest,
        pods: Callable[[str], Pods],
    ) -> None:
        """`shown` is the Pod or Sandbox as the cluster has shown it; `pods` are those of a keeper."""
        super().__init__(record, spec, self._connect_or_explain, GuestCounters())
        self._cluster = cluster
        self._connect_to_guest = connect
        self._pods_of = pods
        self._followed: Pods | None = None
        """The watch that tells when the Pod ends."""
        labels = shown["metadata"].get("labels") or {}
        self._holder = {name: str(labels[name]) for name in (OWNER, KEEPER) if name in labels}

    @property
    def pod(self) -> str:
        return manifests.name(self.record.box_id)

    def follow(self, keeper: str) -> None:
        """Close the links at once when the watch of this keeper's Pods shows that the Pod has ended."""
        if self._followed is not None:
            self._followed.forget(self.pod)
        self._followed = self._pods_of(keeper)
        self._followed.on_end(self.pod, self._close_links)

    async def assign(self, *, owner: str, keeper: str) -> None:
        """Write owner and keeper into the labels, if they are still those that this handle has seen last."""
        wanted = manifests.holder(owner, keeper)
        if wanted != self._holder:
            sandbox = bool(self.record.data.get(sandboxes.WORKLOAD))
            places = sandboxes.PLACES if sandbox else ("/metadata",)
            patch = manifests.handover(self._holder, owner, keeper, places=places)
            await self._cluster.patch("Sandbox" if sandbox else "Pod", self.pod, patch)
            self._holder = wanted
        self.follow(keeper)

    async def _connect_or_explain(self) -> Link:
        """Connect; where that fails, the Pod's state says whether the box has ended or only cannot be reached."""
        try:
            return await self._connect_to_guest()
        except (BoxBroken, Unavailable) as error:
            # A relay without a guest hangs up: then the Pod ends, and the kubelet will report it in a moment.
            looks = _END_LOOKS if error.details.get("errno") == errno.ECONNRESET else 1
            for look in range(looks):
                await asyncio.sleep(_LOOK_SECONDS if look else 0)
                if (pod := await self._shown_pod()) is None:
                    break
                self._raise_if_ended(pod, error)
            raise

    async def _shown_pod(self) -> Manifest | None:
        """Return the Pod, or None if the cluster does not answer. Raises BoxBroken if there is none."""
        try:
            return await self._cluster.get("Pod", self.pod)
        except NotFound as gone:
            raise BoxBroken(f"box {self.record.box_id} is gone: its Pod was deleted") from gone
        except HutchError as unknown:
            log("kubernetes").info("nobody says what became of a Pod", pod=self.pod, error=unknown.message)
            return None

    def _raise_if_ended(self, pod: Manifest, error: HutchError) -> None:
        if phase(pod) in (Phase.ENDED, Phase.GONE):
            raise BoxBroken(f"box {self.record.box_id} has ended: {reason_of_end(pod)}") from error
        if self.is_replaced_by(pod):
            raise BoxBroken(f"box {self.record.box_id} is gone: its Pod was deleted and made anew") from error
        if why := trouble(pod):
            raise Unavailable(
                f"box {self.record.box_id} cannot be reached: {why}",
                op="connect",
                remedy="wait for the node; if it is lost, delete its Node object, and the box is given up",
            ) from error

    def is_replaced_by(self, pod: Manifest) -> bool:
        """Return whether a Pod has this box's name and is another one, as agent-sandbox makes after a deletion."""
        return "uid" in self.record.data and self.record.data["uid"] != str(pod["metadata"].get("uid"))

    def _close_links(self) -> None:
        for link in tuple(self._links.values()):
            link.close()

    async def change_limits(self, limits: Limits) -> tuple[str, ...]:
        """Only the limits that the guest holds change at once; the others would need a new Pod."""
        unchanged = await super().change_limits(limits)
        self.limits = self.limits.but(pids=limits.pids)
        await (await self.link()).request("watch", **watched(self.limits))
        return tuple(name for name in unchanged if name != "pids")

    async def pause(self) -> None:
        raise Unsupported("a Pod cannot be frozen", op="pause", remedy="stop a persistent box instead")

    async def resume(self) -> None:
        raise Unsupported("a Pod cannot be frozen", op="resume")

    async def close(self) -> None:
        if self._followed is not None:
            self._followed.forget(self.pod)
        await super().close()
