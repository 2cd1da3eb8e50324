"""An engine that fails on request: the one fake of the project, for faults that no real engine produces on demand.

`Engine` is the "machine": it holds what really exists, whatever keepers come and go. `FaultyProvider` is one keeper's
provider on it. A test asserts on the engine: what lives there must be what the records say.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from hutch.api import Files
from hutch.errors import BoxBroken, EngineError, HutchError, NotFound, Unsupported
from hutch.model.capabilities import Capabilities, Pause
from hutch.model.ids import BoxId
from hutch.model.limits import EnforcedBy, Grades, Limits
from hutch.model.results import JobInfo, Result, Usage
from hutch.model.spec import EffectiveSpec, Order
from hutch.providers.base import Command, Instance, InstanceRecord, Provider
from hutch.providers.handles import Process
from tests.keeper.gates import Gates

Fault = Callable[[str, BoxId], HutchError | None]
CGROUP = EnforcedBy.CGROUP


class Engine:
    """What exists on the fake machine."""

    def __init__(self) -> None:
        self.boxes: dict[BoxId, InstanceRecord] = {}
        self.stopped: dict[BoxId, InstanceRecord] = {}
        self.broken: set[BoxId] = set()
        self.jobs: dict[BoxId, tuple[JobInfo, ...]] = {}
        self.fault: Fault = lambda op, box_id: None
        """Asked before every step; an error it returns is raised there."""
        self.delay = 0.0
        self.gates = Gates()
        """Steps that wait until the test lets them continue."""
        self.log: list[tuple[str, BoxId]] = []
        self.orders: list[Order] = []
        self.restored: list[Order] = []
        self.clocks: list[tuple[BoxId, float | None, float | None]] = []
        """Boxes whose clocks were set: life without a keeper, ttl."""
        self.flying: dict[int, int] = {}
        """Operations in flight on each keeper's box in memory: a dead keeper's do not bind the one that took over."""

    async def step(self, op: str, box_id: BoxId) -> None:
        self.log.append((op, box_id))
        await asyncio.sleep(self.delay)
        await self.gates.passed(op)
        error = self.fault(op, box_id)
        if error is not None:
            raise error


class FaultyInstance(Instance):
    """Answers "ok" to every command while its box exists and is not broken."""

    def __init__(self, engine: Engine, record: InstanceRecord) -> None:
        self._engine = engine
        self.record = record
        self.ran: list[Command] = []

    @property
    def files(self) -> Files:
        raise Unsupported("the faulty engine has no files")

    async def run(self, command: Command) -> Result:
        await self._engine.step("run", self.record.box_id)
        await self.check()
        self.ran.append(command)
        return Result(job_id="j1", exit_code=0, stdout_bytes=b"ok\n")

    async def start(self, command: Command) -> Process:
        raise Unsupported("the faulty engine has no jobs")

    async def jobs(self) -> tuple[JobInfo, ...]:
        await self._engine.gates.passed("jobs")
        return self._engine.jobs.get(self.record.box_id, ())

    async def job(self, job_id: str) -> Process:
        raise NotFound(f"no job {job_id}")

    async def forget(self, job_id: str) -> None:
        raise NotFound(f"no job {job_id}")

    async def check(self) -> None:
        await self._engine.step("check", self.record.box_id)
        if self.record.box_id in self._engine.broken or self.record.box_id not in self._engine.boxes:
            raise BoxBroken(f"box {self.record.box_id} is broken")

    async def set_clocks(self, *, orphan_grace_sec: float | None = None, ttl_sec: float | None = None) -> None:
        await self._engine.step("clocks", self.record.box_id)
        self._engine.clocks.append((self.record.box_id, orphan_grace_sec, ttl_sec))

    async def usage(self) -> Usage:
        return Usage()

    async def pause(self) -> None:
        await self._engine.step("pause", self.record.box_id)

    async def resume(self) -> None:
        await self._engine.step("resume", self.record.box_id)

    async def change_limits(self, limits: Limits) -> tuple[str, ...]:
        await self._engine.gates.passed("limits")
        return ()

    async def close(self) -> None:
        return None


class FaultyProvider(Provider):
    """The contract over the fake machine."""

    name = "faulty"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def probe(self) -> Capabilities:
        grades = Grades(cpus=CGROUP, memory_mb=CGROUP, pids=CGROUP, disk_mb=EnforcedBy.QUOTA, open_files=CGROUP)
        return Capabilities(
            provider=self.name, grades=grades, persistent=True, durable_jobs=True, pause=Pause.FREEZE, images=("host",),
            writable_root=True, mounts=True,
        )  # fmt: skip

    def plan(self, order: Order) -> InstanceRecord:
        return InstanceRecord(provider=self.name, box_id=order.box_id, keeper=order.keeper)

    async def create(self, order: Order, planned: InstanceRecord) -> Instance:
        self.engine.orders.append(order)
        record = planned.but(data={"made": True})
        try:
            await self.engine.step("create", order.box_id)
            self.engine.boxes[order.box_id] = record
            await self.engine.step("boot", order.box_id)
        except HutchError:
            self.engine.boxes.pop(order.box_id, None)
            raise
        return FaultyInstance(self.engine, record)

    async def attach(self, record: InstanceRecord, spec: EffectiveSpec) -> Instance:
        await self.engine.step("attach", record.box_id)
        if record.box_id not in self.engine.boxes:
            raise NotFound(f"box {record.box_id} is not there")
        return FaultyInstance(self.engine, record)

    async def stop(self, record: InstanceRecord) -> None:
        await self.engine.step("stop", record.box_id)
        self.engine.boxes.pop(record.box_id, None)
        self.engine.stopped[record.box_id] = record

    async def restore(self, order: Order, record: InstanceRecord) -> Instance:
        self.engine.restored.append(order)
        await self.engine.step("restore", record.box_id)
        if record.box_id not in self.engine.stopped:
            raise EngineError(f"box {record.box_id} has nothing to come back from")
        self.engine.boxes[record.box_id] = self.engine.stopped.pop(record.box_id)
        return FaultyInstance(self.engine, record)

    async def destroy(self, record: InstanceRecord) -> None:
        await self.engine.step("destroy", record.box_id)
        self.engine.boxes.pop(record.box_id, None)
        self.engine.stopped.pop(record.box_id, None)

    async def list(self) -> tuple[InstanceRecord, ...]:
        return (*self.engine.boxes.values(), *self.engine.stopped.values())

    async def close(self) -> None:
        return None


def fail_once(op: str, error: HutchError) -> Fault:
    """A fault that strikes the first time `op` is reached."""
    left: list[Any] = [error]

    def fault(step: str, box_id: BoxId) -> HutchError | None:
        return left.pop() if step == op and left else None

    return fault
