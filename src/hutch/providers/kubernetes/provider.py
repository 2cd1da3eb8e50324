"""Kubernetes: each box is a Pod that the cluster's scheduler places, found by its labels from any machine."""

import asyncio
import base64
from collections.abc import Mapping
from typing import ClassVar

from hutch.errors import BoxBroken, EngineError, HutchError, NotFound, Unavailable, Unsupported
from hutch.logs import log
from hutch.model.capabilities import Capabilities
from hutch.model.ids import BoxId
from hutch.model.spec import EffectiveSpec, Order
from hutch.providers.base import InstanceRecord, Leftover, Provider
from hutch.providers.command.jail_spec import check
from hutch.providers.guest_bundle.pack import guest_bundle
from hutch.providers.guest_client.link import Link
from hutch.providers.kubernetes import certificates, lanes, manifests, probe
from hutch.providers.kubernetes import settings as configuration
from hutch.providers.kubernetes.cluster import KINDS, Cluster, is_installed
from hutch.providers.kubernetes.instance import PodInstance, guest_options
from hutch.providers.kubernetes.manifests import BOX, KEEPER, Manifest
from hutch.providers.kubernetes.pods import Phase, Pods, phase
from hutch.providers.kubernetes.settings import LaneChoice
from hutch.providers.stdio_relay.sdk_calls import create_or_undo


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
        label = manifests.keeper_label(keeper)
        if label not in self._pods:
            self._pods[label] = Pods(self.cluster, label)
        return self._pods[label]

    # --- capabilities ----------------------------------------------------------------------------------------

    async def probe(self) -> Capabilities:
        """Prove the cluster with two canary boxes, once; `doubt` asks for it again."""
        if self._probed is None:
            found = await probe.probe(self, self._settings)
            if not found.usable:
                return found
            self._probed = found
        return self._probed

    def doubt(self) -> None:
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
        pods = self.pods(order.keeper)
        await cluster.create(manifests.pod(order, self._settings, bundle))
        pod = await pods.wait_for_running(manifests.name(order.box_id), self._settings.start_timeout_sec)
        record = planned.but(data={**planned.data, "node": str(pod["spec"].get("nodeName", ""))})
        instance = self._instance(record, order.spec, _address(pod), keys, guest_options(order))
        try:
            await instance.link()
        except HutchError as error:
            await instance.close()
            raise EngineError(
                f"box {order.box_id} could not be made: its guest does not answer: {error.message}",
                op="create",
                details={"step": "guest"},
            ) from error
        return instance

    def _instance(
        self,
        record: InstanceRecord,
        spec: EffectiveSpec,
        address: str,
        keys: certificates.RelayKeys,
        options: bytes | None = None,
    ) -> PodInstance:
        first_options = options
        pod = manifests.name(record.box_id)

        async def connect() -> Link:
            nonlocal first_options
            link = await self._connect(pod, address, keys, first_options)
            first_options = None
            return link

        return PodInstance(record, spec, self.cluster, self.pods(record.keeper), connect)

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
        instance = self._instance(record, spec, _address(pod), await self._keys(name))
        try:
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
        return tuple(_record(self.name, pod) for pod in await self.cluster.objects("Pod", {BOX: None}))

    # --- ending ----------------------------------------------------------------------------------------------

    async def stop(self, record: InstanceRecord) -> None:
        """Delete the Pod and keep its claims."""
        await self._delete(record, kinds=("Pod", "Secret", "NetworkPolicy"))

    async def restore(self, order: Order, record: InstanceRecord) -> PodInstance:
        return await create_or_undo(self._make(order, record), lambda: self.stop(record))

    async def destroy(self, record: InstanceRecord) -> None:
        await self._delete(record, kinds=("Pod", "Secret", "NetworkPolicy"))
        claims = record.data.get("claims")
        for claim in claims if isinstance(claims, list) else ():
            await self.cluster.delete("PersistentVolumeClaim", claim)

    async def _delete(self, record: InstanceRecord, kinds: tuple[str, ...]) -> None:
        name = manifests.name(record.box_id)
        for kind in kinds:
            await self.cluster.delete(kind, name)

    async def sweep(self, *, dry_run: bool = False) -> tuple[Leftover, ...]:
        """Remove secrets, policies and claims whose box has neither a Pod nor a record, left by a killed creation.

        Claims are kept: a stopped persistent box has no Pod, and only its record tells that it is still wanted.
        """
        living = {pod["metadata"]["labels"][BOX] for pod in await self.cluster.objects("Pod", {BOX: None})}
        found: list[Leftover] = []
        for kind in KINDS[1:3]:
            for each in await self.cluster.objects(kind, {BOX: None}):
                if each["metadata"]["labels"][BOX] not in living and not _is_recent(each):
                    if not dry_run:
                        await self.cluster.delete(kind, each["metadata"]["name"])
                    found.append(Leftover(kind=kind.lower(), name=each["metadata"]["name"]))
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
    return InstanceRecord(
        provider=provider, box_id=BoxId(labels[BOX]), keeper=labels.get(KEEPER, ""), data={"claims": claims}
    )


def _address(pod: Manifest) -> str:
    return str((pod.get("status") or {}).get("podIP") or "")


def _is_recent(manifest: Manifest) -> bool:
    """Return whether an object may belong to a creation that still runs."""
    import datetime

    made = manifest["metadata"].get("creationTimestamp")
    if isinstance(made, str):
        made = datetime.datetime.fromisoformat(made)
    return made is not None and (datetime.datetime.now(datetime.UTC) - made).total_seconds() < 600
