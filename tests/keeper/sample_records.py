"""Records to test with."""

from hutch.keeper.boxes.records import BoxRecord
from hutch.model.boxes import State
from hutch.model.ids import new_box_id
from hutch.model.limits import Limits
from hutch.model.spec import EffectiveSpec, NetworkMode, Retention, Workspace
from hutch.providers.base import InstanceRecord

LIMITS = Limits(
    cpus=1, memory_mb=64, pids=32, disk_mb=64, open_files=256, timeout_sec=30, max_timeout_sec=120
)  # fmt: skip


def spec(**changes: object) -> EffectiveSpec:
    plain = EffectiveSpec(
        profile="default", provider="faulty", image="host", workspace=Workspace(), workdir="/workspace", user="user",
        mounts=(), env={}, secrets={}, network=NetworkMode.OFF, allow_private=(), limits=LIMITS, read_only_root=True,
        retention=Retention.TEMPORARY, idle_timeout_sec=0, ttl_sec=0, labels={}, ports=(), name="",
    )  # fmt: skip
    return plain.but(**changes)


def record(*, key: str = "", labels: dict[str, str] | None = None, state: State = State.CREATING) -> BoxRecord:
    box_id = new_box_id()
    instance = InstanceRecord(provider="faulty", box_id=box_id, keeper="k")
    return BoxRecord(
        id=box_id, keeper="k", state=state, spec=spec(), instance=instance, created_at=1.0, used_at=1.0,
        idempotency_key=key, labels=labels or {},
    )  # fmt: skip
