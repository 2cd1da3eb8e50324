"""Kubernetes: each box is a Pod that the cluster's scheduler places, found by its labels from any machine."""

import asyncio
import base64
import contextlib
import datetime
import time
from collections.abc import Mapping
from typing import ClassVar

from hutch.errors import BoxBroken, EngineError, HutchError, NotFound, Refused, Unavailable, Unsupported
from hutch.logs import log
from hutch.model.capabilities import Capabilities
from hutch.model.ids import BoxId
from hutch.model.spec import EffectiveSpec, Order
from hutch.providers.base import InstanceRecord, Leftover, Provider
from hutch.providers.command.jail_spec import check
from hutch.providers.guest_bundle.pack import guest_bundle
from hutch.providers.guest_client.link import Link
from hutch.providers.kubernetes import certificates, lanes, manifests, probe, sandboxes
from hutch.providers.kubernetes import settings as configuration
from hutch.providers.kubernetes.cluster import KINDS, Cluster, is_installed
from hutch.providers.kubernetes.instance import PodInstance, guest_options
from hutch.providers.kubernetes.manifests import BOX, KEEPER, Manifest
from hutch.providers.kubernetes.pods import Phase, Pods, phase
from hutch.providers.kubernetes.settings import LaneChoice, Workload
from hutch.providers.stdio_relay.sdk_calls import create_or_undo

_KINDS = KINDS[:3]
"""What a box has while it runs; its claims may outlive it."""
_LONG_AGO_SECONDS = 600.0
_SWEEP_SECONDS = 3600.0
_END_SECONDS = 5.0


class KubernetesProvider(Provider):
    """Boxes as Pods; see docs/guides/kubernetes.md."""

    name: ClassVar[str] = "kubernetes"
    portable: ClassVar[bool] = True
    settings = configuration.Settings

    def __init__(self) -> None:
        self._settings = configuration.Settings()
        self._cluster: Cluster | None = None
        self._pods: dict[str, Pods] = {}
        """The watch of each keeper whose boxes this process holds."""
        self._direct: bool | None = None
        """Whether the Pods' addresses can be reached from here; None until the first box has shown it."""
        self._probed: Capabilities | None = None
        self._swept_at: float | None = None

    def configure(self, settings: Mapping[str, object]) -> None:
        self._settings = configuration.read(self.name, settings)

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            if not is_installed():
                raise EngineError("the package lightkube is not installed", remedy="pip install 'hutch[kubernetes]'")
            self._cluster = Cluster(self._settings)
        return self._cluster

    def pods(self, keeper: str) -> Pods:
        label = manifests.label_value(keeper)
        if label not in self._pods:
            self._pods[label] = Pods(self.cluster, label)
        return self._pods[label]

    # --- capabilities ----------------------------------------------------------------------------------------

    async def probe(self) -> Capabilities:
        """Prove the cluster with two canary boxes, once; `forget_probe` asks for it again."""
        if self._probed is None:
            found = await probe.probe(self, self._settings)
            if not found.usable:
                return found
            self._probed = found
        return self._probed

    def forget_probe(self) -> None:
        self._probed = None

    async def check(self) -> None:
        await self.cluster.version()

    async def needs_pull(self, reference: str) -> bool:
        return str(self._settings.pull) != "Never"

    @property
    def direct(self) -> bool | None:
        return self._direct

    # --- creating --------------------------------------------------------------------------------------------

    def plan(self, order: Order) -> InstanceRecord:
        parts = [f"{manifests.name(order.box_id)}-{part}" for part in manifests.volume_claims(order.spec)]
        data: dict[str, str | int | float | bool | list[str] | None] = {"claims": parts}
        if self._settings.workload is Workload.SANDBOX:
            data[sandboxes.WORKLOAD] = str(Workload.SANDBOX)
        return InstanceRecord(provider=self.name, box_id=order.box_id, keeper=order.keeper, data=data)

    async def create(self, order: Order, planned: InstanceRecord) -> PodInstance:
        check(order, probe.claims(self._settings, direct=True, walled=True))
        if order.spec.workspace.source != "own":
            raise Unsupported(
                "a Pod's workspace is its own: the keeper's files are on another machine",
                op="create",
                remedy="copy files in, or make the box persistent",
            )
        if not self._settings.guest_image:
            raise EngineError(
                "no guest image is named",
                op="create",
                remedy="set [providers.kubernetes] guest_image to Hutch's image (deploy/Containerfile)",
            )
        return await create_or_undo(self._make(order, planned), lambda: self.destroy(planned))

    async def _make(self, order: Order, planned: InstanceRecord) -> PodInstance:
        bundle = await asyncio.to_thread(guest_bundle)
        keys = certificates.new_keys(manifests.name(order.box_id))
        cluster = self.cluster
        parts = manifests.volume_claims(order.spec)
        # The walls first: a Pod whose policy comes later has a network until then.
        await cluster.create(manifests.network_policy(order))
        secret = manifests.secret(order, certificate=keys.certificate, key=keys.key, token=keys.token)
        await asyncio.gather(
            cluster.create(secret), *(cluster.create(manifests.claim(order, part, self._settings)) for part in parts)
        )
        pod = await self._start_pod(manifests.pod(order, self._settings, bundle), order.keeper, planned)
        metadata = pod["metadata"]
        facts = {"node": str(pod["spec"].get("nodeName", "")), "uid": str(metadata.get("uid", ""))}
        record = planned.but(data={**planned.data, **facts})
        instance = self._instance(record, order.spec, pod, keys, guest_options(order))
        instance.follow(order.keeper)
        try:
            await instance.link()
        except Refused:
            await instance.close()
            raise
        except HutchError as error:
            await instance.close()
            raise EngineError(
                f"box {order.box_id} could not be made: its guest does not answer: {error.message}",
                op="create",
                details={"step": "guest"},
            ) from error
        return instance

    async def _start_pod(self, pod: Manifest, keeper: str, planned: InstanceRecord) -> Manifest:
        """Create the Pod, or the Sandbox for which agent-sandbox makes it, and return it when it runs."""
        name, pods = pod["metadata"]["name"], self.pods(keeper)
        if not planned.data.get(sandboxes.WORKLOAD):
            await self.cluster.create(pod)
            return await pods.wait_for_running(name, self._settings.start_timeout_sec)
        await self.cluster.create(sandboxes.manifest(pod, await self.cluster.sandbox_api()))
        try:
            return await pods.wait_for_running(name, self._settings.start_timeout_sec, made_by_controller=True)
        except Unavailable as error:
            raise await sandboxes.explain(self.cluster, name, error) from error

    def _instance(
        self,
        record: InstanceRecord,
        spec: EffectiveSpec,
        pod: Manifest,
        keys: certificates.RelayKeys,
        options: bytes | None = None,
        *,
        shown: Manifest | None = None,
    ) -> PodInstance:
        first_options = options
        name, address = pod["metadata"]["name"], _address(pod)

        async def connect() -> Link:
            nonlocal first_options
            link = await self._connect(name, address, keys, first_options)
            first_options = None
            return link

        return PodInstance(record, spec, self.cluster, connect, shown=shown or pod, pods=self.pods)

    async def _connect(self, pod: str, address: str, keys: certificates.RelayKeys, options: bytes | None) -> Link:
        """Connect by the lane that is asked for; `auto` keeps to the one that the first box has shown to work."""
        lane = self._settings.lane
        if lane is not LaneChoice.EXEC and (lane is LaneChoice.DIRECT or self._direct is not False):
            try:
                link = await lanes.connect_directly(address, keys.certificate, keys.token, options)
            except Unavailable as error:
                if lane is LaneChoice.DIRECT or self._direct:
                    raise
                log("kubernetes").warning("no way to Pods; using the exec API", pod=pod, error=error.message)
            else:
                self._direct = True
                return link
        link = await lanes.connect_by_exec(self.cluster, pod, options)
        if lane is LaneChoice.AUTO:
            self._direct = False
        return link

    # --- finding again ---------------------------------------------------------------------------------------

    async def attach(self, record: InstanceRecord, spec: EffectiveSpec) -> PodInstance:
        name = manifests.name(record.box_id)
        pod = await self.cluster.get("Pod", name)
        if phase(pod) is not Phase.RUNNING:
            raise NotFound(f"box {record.box_id} no longer runs", op="attach")
        shown = await self.cluster.get("Sandbox", name) if record.data.get(sandboxes.WORKLOAD) else pod
        instance = self._instance(record, spec, pod, await self._keys(name), shown=shown)
        try:
            if instance.is_replaced_by(pod):
                raise NotFound(f"box {record.box_id} is gone: its Pod was deleted and made anew", op="attach")
            await instance.link()
        except BaseException as error:
            await instance.close()
            if isinstance(error, BoxBroken):
                raise NotFound(f"box {record.box_id} no longer runs: {error.message}", op="attach") from error
            raise
        return instance

    async def _keys(self, name: str) -> certificates.RelayKeys:
        data = (await self.cluster.get("Secret", name)).get("data") or {}
        text = {key: base64.b64decode(value).decode() for key, value in data.items()}
        return certificates.RelayKeys(text.get("tls.crt", ""), "", text.get("token", ""))

    async def list(self) -> tuple[InstanceRecord, ...]:
        """Return the boxes that have a Pod, and the stopped ones, of which only claims are left."""
        records = [_record(self.name, pod) for pod in await self.cluster.objects("Pod", {BOX: None})]
        found = {record.box_id: record for record in records}
        claims: dict[str, list[Manifest]] = {}
        if self._settings.storage_class:
            for each in await self.cluster.objects("PersistentVolumeClaim", {BOX: None}):
                if not each["metadata"].get("deletionTimestamp"):
                    claims.setdefault(each["metadata"]["labels"][BOX], []).append(each)
        for box_id in claims.keys() - found.keys():
            labels = claims[box_id][0]["metadata"]["labels"]
            names = [each["metadata"]["name"] for each in claims[box_id]]
            found[BoxId(box_id)] = InstanceRecord(
                provider=self.name, box_id=BoxId(box_id), keeper=labels.get(KEEPER, ""),
                data={"claims": names, "store": True},
            )  # fmt: skip
        return tuple(found.values())

    # --- ending ----------------------------------------------------------------------------------------------

    async def stop(self, record: InstanceRecord) -> None:
        """Delete the Pod and keep its claims."""
        await self._delete(record, kinds=_KINDS)

    async def restore(self, order: Order, record: InstanceRecord) -> PodInstance:
        for claim in _claims(record):
            if (await self.cluster.get("PersistentVolumeClaim", claim))["metadata"].get("deletionTimestamp"):
                raise NotFound(f"the files of box {record.box_id} are gone: {claim} was deleted", op="restore")
        return await create_or_undo(self._make(order, record), lambda: self.stop(record))

    async def destroy(self, record: InstanceRecord) -> None:
        await self._delete(record, kinds=_KINDS)
        for claim in _claims(record):
            await self.cluster.delete("PersistentVolumeClaim", claim)

    async def _delete(self, record: InstanceRecord, kinds: tuple[str, ...]) -> None:
        """Delete the box's objects; the Sandbox first, because its controller would make the Pod again."""
        name = manifests.name(record.box_id)
        await self._end_processes(name)
        if record.data.get(sandboxes.WORKLOAD):
            with contextlib.suppress(Unsupported):  # Without the resource definition there is no Sandbox any more.
                await self.cluster.delete("Sandbox", name)
        for kind in kinds:
            await self.cluster.delete(kind, name)

    async def _end_processes(self, name: str) -> None:
        """Let the guest end the box now: the kubelet leaves the containers of a deleted Pod some seconds more."""
        try:
            async with asyncio.timeout(_END_SECONDS):
                pod = await self.cluster.get("Pod", name)
                if phase(pod) is not Phase.RUNNING:
                    return
                await lanes.end_box(await self._connect(name, _address(pod), await self._keys(name), None))
        except NotFound:
            return
        except (HutchError, TimeoutError) as error:
            log("kubernetes").info("a box ends with its Pod, not before", pod=name, error=error)

    async def sweep(self, *, dry_run: bool = False) -> tuple[Leftover, ...]:
        """Remove Pods that ended long ago, and secrets and policies without a Pod: no keeper has cleared them away.

        A box whose keeper and store are lost is ended by its own clock, and then its Pod is found here. Claims are
        kept: a stopped persistent box has no Pod, and only its record tells that it is still wanted. Keepers ask often
        and the lists may be long, so a process looks at most every hour.
        """
        now = time.monotonic()
        if self._swept_at is not None and now - self._swept_at < _SWEEP_SECONDS:
            return ()
        self._swept_at = now
        pods = await self.cluster.objects("Pod", {BOX: None})
        if self._settings.workload is Workload.SANDBOX:
            pods += await self.cluster.objects("Sandbox", {BOX: None})
        found: list[Leftover] = []
        for pod in [each for each in pods if _ended_long_ago(each)]:
            found.append(Leftover(kind="pod", name=pod["metadata"]["name"]))
            if not dry_run:
                await self._delete(_record(self.name, pod), kinds=_KINDS)
        living = {pod["metadata"]["labels"][BOX] for pod in pods}
        for kind in _KINDS[1:]:
            for each in await self.cluster.objects(kind, {BOX: None}):
                if each["metadata"]["labels"][BOX] not in living and _is_older(each["metadata"]["creationTimestamp"]):
                    found.append(Leftover(kind=kind.lower(), name=each["metadata"]["name"]))
                    if not dry_run:
                        await self.cluster.delete(kind, each["metadata"]["name"])
        return tuple(found)

    async def close(self) -> None:
        for pods in self._pods.values():
            await pods.close()
        self._pods.clear()
        if self._cluster is not None:
            await self._cluster.close()
            self._cluster = None


def _record(provider: str, pod: Manifest) -> InstanceRecord:
    labels = pod["metadata"]["labels"]
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["spec"].get("volumes") or ()
        if volume.get("persistentVolumeClaim")
    ]
    data: dict[str, str | int | float | bool | list[str] | None] = {"claims": claims}
    if any(each.get("kind") == "Sandbox" for each in pod["metadata"].get("ownerReferences") or ()):
        data[sandboxes.WORKLOAD] = str(Workload.SANDBOX)
    return InstanceRecord(provider=provider, box_id=BoxId(labels[BOX]), keeper=labels.get(KEEPER, ""), data=data)


def _claims(record: InstanceRecord) -> tuple[str, ...]:
    claims = record.data.get("claims")
    return tuple(claims) if isinstance(claims, list) else ()


def _address(pod: Manifest) -> str:
    return str((pod.get("status") or {}).get("podIP") or "")


def _ended_long_ago(pod: Manifest) -> bool:
    """Return whether a box's container ended so long ago that a keeper who has it would have removed the Pod."""
    if phase(pod) is not Phase.ENDED:
        return False
    states = [each.get("state") or {} for each in pod["status"].get("containerStatuses") or ()]
    ended = [state["terminated"].get("finishedAt") for state in states if state.get("terminated")]
    return _is_older(next(filter(None, ended), None) or pod["metadata"]["creationTimestamp"])


def _is_older(moment: str | datetime.datetime) -> bool:
    """Return whether a time is so long ago that no creation or removal of that time still runs."""
    at = datetime.datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return (datetime.datetime.now(datetime.UTC) - at).total_seconds() > _LONG_AGO_SECONDS
